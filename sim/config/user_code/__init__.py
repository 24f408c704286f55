"""Code that a scenario names: where it may lie, how it is imported and called, and how long it may take."""
