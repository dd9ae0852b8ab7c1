"""Learners on several hosts: one process each, started with the same experiment, joined by jax.distributed."""
