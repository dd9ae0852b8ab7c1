"""Evaluation of checkpoints: returns, curves, videos."""
