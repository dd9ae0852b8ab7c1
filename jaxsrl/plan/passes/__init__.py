"""Plan to plan, applied in order: what the agent needs, nodes, serving, learner processes."""
