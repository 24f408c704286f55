"""Coroutines under every driver: what advances them, and what they have in flight."""
