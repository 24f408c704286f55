"""Time models of computation."""
