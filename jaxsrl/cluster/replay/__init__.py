"""Replay on another node."""
