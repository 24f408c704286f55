"""Schemes with an outer optimiser: local steps, and rarely an outer step along their mean change."""
