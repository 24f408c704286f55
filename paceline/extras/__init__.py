"""What the core works without: it reaches this by names in its registries, and imports none of it."""
