"""Drivers run schemes: each decides what an operation means on its clock."""
