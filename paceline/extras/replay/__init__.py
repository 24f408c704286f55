"""A recorded run again, in one process and without a clock: ``paceline replay``."""
