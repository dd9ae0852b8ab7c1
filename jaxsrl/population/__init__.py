"""Mapping of policies to agents."""
