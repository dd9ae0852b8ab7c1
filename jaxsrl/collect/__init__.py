"""How trajectories are made: serially, by a pool with an inference server, by actor processes."""
