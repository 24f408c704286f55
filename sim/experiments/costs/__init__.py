"""Costs of a scheme on a cluster, and decisions by them."""
