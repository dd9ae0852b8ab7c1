"""Reading actions, and writing and validating observations."""
