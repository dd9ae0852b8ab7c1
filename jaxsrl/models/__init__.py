"""Versions of what a run has learned, by number and tag."""
