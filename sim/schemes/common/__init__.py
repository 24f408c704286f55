"""What schemes of all families have in common: units, compressed averages, declared memory, other names."""
