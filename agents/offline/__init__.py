"""Algorithms that learn from a dataset."""
