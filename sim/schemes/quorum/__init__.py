"""Averages of those who are there in time: ``quorum`` and ``deadline`` of synchronous schemes."""
