"""Averaging schemes in the user's own training loop."""
