"""Measuring a run: episodes, records, and where records go."""
