"""A scheme inside the user's own training loop."""
