"""Closed forms of two papers on large models, beside which the simulation is put."""
