"""Parts shared by all families of schemes: units, compressed averages, declared memory, other names."""
