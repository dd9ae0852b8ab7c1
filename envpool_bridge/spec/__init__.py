"""Specs of one environment's step: trees of specs, padding for unequal agents, stored encoding."""
