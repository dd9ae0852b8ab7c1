"""Writing, verifying and reading of checkpoints."""
