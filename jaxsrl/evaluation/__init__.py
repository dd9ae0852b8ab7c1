"""Episodes with fixed parameters: one checkpoint, all of them, videos, loading an agent."""
