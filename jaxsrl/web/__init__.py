"""`jaxsrl view`: a local web page of runs, live during training. Reads files only; no jax."""
