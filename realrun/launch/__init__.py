"""The launcher: starts the ranks of real runs."""
