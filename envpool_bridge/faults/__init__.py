"""Failpoints and a hook for step journals, for tests."""
