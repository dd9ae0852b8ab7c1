"""Results of finished runs as data, the page drawn from them, and training of missing ones."""
