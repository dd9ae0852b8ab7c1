"""Environments written in JAX: a small protocol, vectorized stepping, and one adapter per package."""
