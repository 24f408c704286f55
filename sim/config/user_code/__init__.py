"""Code named in scenarios: its location, import, call and time limit."""
