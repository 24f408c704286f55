"""Who takes part in a real run, and how its ranks find each other."""
