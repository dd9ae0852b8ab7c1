"""Predictions about plans before they run: calibration, simulation, comparison."""
