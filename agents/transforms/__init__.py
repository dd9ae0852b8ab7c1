"""Agent to agent: normalization, frame stacking, several policies."""
