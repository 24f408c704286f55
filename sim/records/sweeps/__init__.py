"""Sweeps: the answer over all settings."""
