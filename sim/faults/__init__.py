"""Workers that fail and return: what a scenario says, outages drawn from its seed, and the time they cost."""
