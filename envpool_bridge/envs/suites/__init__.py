"""One file per suite of environments: what it needs, which options it takes, how its observations are prepared."""
