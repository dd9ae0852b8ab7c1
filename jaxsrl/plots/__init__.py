"""Curves and scores of runs, compared: what `jaxsrl plot` draws. Reads files only: no jax."""
