"""Models too large to be trained here: their layers, and published tables beside what follows from ours."""
