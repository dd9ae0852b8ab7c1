"""Experience that is kept and learned from again."""
