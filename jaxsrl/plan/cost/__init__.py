"""How many bytes a plan moves and holds: arithmetic only."""
