"""Readers of run directories: state, summary, inspection, checkpoints."""
