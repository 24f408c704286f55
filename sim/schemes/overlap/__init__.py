"""Gradients that are sent in buckets while the backward pass, or the next forward pass, goes on."""
