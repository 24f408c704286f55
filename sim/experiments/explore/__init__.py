"""What ``paceline explore`` prices anew: recorded trajectories, and the law of their clock in tables."""
