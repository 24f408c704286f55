"""What to run: candidates, their race with equal tuning, and how far the winner's place holds."""
