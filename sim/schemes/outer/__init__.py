"""Schemes with an outer optimiser: local steps, and rarely a step along the mean of what they changed."""
