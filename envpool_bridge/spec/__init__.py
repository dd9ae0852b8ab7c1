"""What one environment's step looks like: specs, trees of specs, padding of unequal agents, stored encoding."""
