"""Recommendations in words."""
