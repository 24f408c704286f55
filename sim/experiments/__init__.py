"""What can be asked of a scenario."""
