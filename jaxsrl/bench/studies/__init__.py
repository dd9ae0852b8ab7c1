"""Measurements made once, kept for the record."""
