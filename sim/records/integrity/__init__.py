"""Integrity of result folders: checksums."""
