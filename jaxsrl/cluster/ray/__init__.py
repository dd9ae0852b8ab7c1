"""Ray actors and the Ray engine: the only files that import ray."""
