"""Collectives spelled out in messages."""
