"""Datasets: recorded steps in files, for offline learning."""
