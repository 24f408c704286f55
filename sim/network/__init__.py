"""Time models of the network."""
