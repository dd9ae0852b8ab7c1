"""A plan as text and as SVG."""
