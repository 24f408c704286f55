"""How a model learns: optimisers, learning rates, gradients and scores."""
