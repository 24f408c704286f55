"""Averages without stragglers: ``quorum`` and ``deadline`` of synchronous schemes."""
