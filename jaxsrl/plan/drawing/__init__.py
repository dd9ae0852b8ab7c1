"""A plan as text, as SVG and as a figure."""
