"""Training: optimisers, learning rates, gradients and scores."""
