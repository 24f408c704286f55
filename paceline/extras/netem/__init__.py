"""``paceline netem``: commands that make hosts of one place play a scenario's network."""
