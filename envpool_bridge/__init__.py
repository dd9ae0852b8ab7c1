"""CPU side of jaxsrl: environments in worker processes that write into a shared-memory ring. Never imports jax."""
