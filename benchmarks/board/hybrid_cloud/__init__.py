"""Hivemind on an office's GPU with others in a cloud; see README.md."""
