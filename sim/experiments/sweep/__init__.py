"""Sweeps: many settings of one scenario; what does not depend on the network is computed once.

``grid`` makes the settings and runs them; ``shared`` runs jobs that differ in their clocks alone together;
``folder`` holds the results of a grid.
"""
