"""Environments written in JAX: one small protocol, what steps many of them, and one adapter a package."""
