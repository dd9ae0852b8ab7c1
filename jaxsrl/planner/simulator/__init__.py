"""Discrete-event simulation of plans on other machines, with measured costs."""
