"""Bytes that a plan moves and holds: arithmetic only."""
