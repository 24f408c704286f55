"""The cluster driver: schemes on the wall clock, and the log of each rank."""
