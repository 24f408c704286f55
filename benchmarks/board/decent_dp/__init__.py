"""Decent-DP's four ways to average on three clusters; see README.md."""
