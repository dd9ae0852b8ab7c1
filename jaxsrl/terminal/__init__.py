"""Text for people: tables, sparklines, units."""
