"""``paceline explore``: recorded trajectories priced anew in a browser, by the law of their clock."""
