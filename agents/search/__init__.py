"""Tree search over any model: pure functions, one tree a row."""
