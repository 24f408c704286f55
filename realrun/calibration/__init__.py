"""Calibration: correction factors from measurements, and the errors of predictions."""
