"""Sparklines and bars in text, with ASCII forms for terminals without Unicode."""

import math
from collections.abc import Sequence

_LEVELS, _ASCII_LEVELS = "▁▂▃▄▅▆▇█", "_.-~=+*#"


def sparkline(values: Sequence[float], width: int, unicode: bool = True) -> str:
    """Returns the last `width` values as one character each, scaled from their minimum to maximum; non-finite ones are blank."""
    shown = values[-width:] if width > 0 else ()
    finite = [value for value in shown if math.isfinite(value)]
    if not finite:
        return " " * len(shown)
    levels = _LEVELS if unicode else _ASCII_LEVELS
    low, high = min(finite), max(finite)
    scale = (len(levels) - 1) / (high - low) if high > low else 0.0
    return "".join(levels[int((value - low) * scale)] if math.isfinite(value) else " " for value in shown)


def lengths(shares: Sequence[float], width: int) -> list[int]:
    """Returns the number of characters of each share of a bar.

    They sum to at most `width`. A share above 0 gets at least one character while there is room.

    Args:
        shares: Shares from 0 to 1, with a sum of about 1 at most.
        width: characters of the bar.
    """
    sizes: list[int] = []
    for share in shares:
        size = max(1, round(share * width)) if share > 0.0 else 0
        sizes.append(min(size, width - sum(sizes)))
    return sizes
