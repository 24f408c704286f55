"""The command line: one module for each kind of command, and shared options and output."""
