"""What changes no clock: the core reaches it by names in its registries, and imports none of it."""
