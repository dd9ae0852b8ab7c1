"""The replay buffer in JAX, in device memory."""
