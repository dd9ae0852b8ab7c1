"""Trajectory collection: serially, by a pool with an inference server, or by actor processes."""
