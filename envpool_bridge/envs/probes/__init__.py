"""Tiny environments whose optimal values are known, for tests."""
