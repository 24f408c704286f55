"""Graphs by name, from files, and from users' functions."""
