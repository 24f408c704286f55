"""Scenario files: their format, and changes before validation."""
