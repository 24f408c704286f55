"""How scores, operations and traces are written to files, and read back."""
