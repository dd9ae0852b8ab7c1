"""Several policies that learn side by side."""
