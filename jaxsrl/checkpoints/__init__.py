"""Writing, verifying and reading checkpoints."""
