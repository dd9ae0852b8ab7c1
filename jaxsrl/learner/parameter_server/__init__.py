"""Gradients that are applied elsewhere: the plan `central`."""
