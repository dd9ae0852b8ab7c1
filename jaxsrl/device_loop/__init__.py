"""Environments, acting and learning in one jitted program, replicated over a mesh: no host in the loop."""
