"""Measured curves: scores against steps, examples or tokens, from users' files and result folders."""
