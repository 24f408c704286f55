"""Coroutines under every driver: advancing them, and their operations in flight."""
