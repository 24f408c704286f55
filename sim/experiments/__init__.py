"""Experiments with a scenario: simulation, tuning, costs, replay."""
