"""Storms of faults over two replicas of torchft that share a GPU, measured by others; see README.md."""
