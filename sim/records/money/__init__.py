"""Money: prices, and the cost of a run."""
