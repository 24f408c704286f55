"""What to run: candidates, and their race with equal tuning."""
