"""``paceline topology``: graphs and mixing weights apart from any run."""
