"""Experiments with a scenario: simulate, tune, check what it costs, replay what was recorded."""
