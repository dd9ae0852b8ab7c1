"""Environment hosts on other nodes."""
