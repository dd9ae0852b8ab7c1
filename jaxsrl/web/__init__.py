"""`jaxsrl view`: a local web page of runs, live while they train. Reads files only: no jax, nothing is written."""
