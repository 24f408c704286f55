"""What the page of ``paceline explore`` re-prices: recorded trajectories, and the law of their clock as tables."""
