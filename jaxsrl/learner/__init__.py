"""Learner: updates on full slots, sharded over a mesh, and publication of parameters."""
