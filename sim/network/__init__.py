"""Nominal networks: hosts, links, routes, transports, profiles, and their variation in time."""
