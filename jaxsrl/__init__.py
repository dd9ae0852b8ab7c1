"""jaxsrl: reinforcement learning on JAX. An algorithm is pure functions, a plan says where they run, `run` interprets it."""
