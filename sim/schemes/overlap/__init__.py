"""Gradients sent in buckets during the backward pass, or during the next forward pass."""
