"""Failpoints, step journals and their auditor: used by tests only."""
