"""Sweeps: many settings of one scenario, with shared computations.

``grid`` makes the settings and runs them; ``shared`` runs jobs that differ in their clocks alone together;
``folder`` holds the results of a grid.
"""
