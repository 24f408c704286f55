"""The tasks that come with Paceline."""
