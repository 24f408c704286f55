"""Hivemind across regions and clouds; see README.md."""
