"""Algorithms of jaxsrl as pure functions on jax: no processes, no devices, no files, no mesh axis names."""
