"""Collectives spelled in messages."""
