"""Several policies that train in parallel."""
