"""File formats of scores, operations and traces."""
