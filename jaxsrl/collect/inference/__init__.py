"""Batched inference server: reads observations and writes actions in the slots that environments use."""
