"""Comparison of runs by curves and scores, for `jaxsrl plot`. Reads files only; no jax."""
