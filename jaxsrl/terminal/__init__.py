"""Text output: tables, sparklines, units."""
