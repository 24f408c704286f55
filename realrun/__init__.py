"""The validator: the same schemes on a real cluster."""
