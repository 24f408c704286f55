"""The command line: one module for each kind of command, and what they share."""
