"""The learner: leases full slots, updates sharded over a mesh, publishes parameters."""
