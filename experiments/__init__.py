"""Experiments: compositions only, each a script with command-line flags."""
