"""The simulator: real gradients under a virtual clock."""
