"""Inference servers on other nodes."""
