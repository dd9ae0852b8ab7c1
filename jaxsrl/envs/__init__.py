"""Environments written in JAX: a small protocol, vectorized stepping, and one adapter per package.

Environments that worker processes step, and their suites (Atari, PettingZoo, ...), are in `envpool_bridge/envs`.
"""
