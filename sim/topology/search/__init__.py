"""Search for graphs on which averaging is fast.

Source of the idea: Jameel, Jawed and Schmidt-Thieme, PAKDD 2020: local search guided by the spectrum, and
Laplacian weights on the result. The annealing, the bounds that reject moves and the search for time are ours.
"""
