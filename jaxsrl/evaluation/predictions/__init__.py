"""Open-loop predictions of world models: what an agent imagines of its future observations, next to the real ones."""
