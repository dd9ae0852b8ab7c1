"""Small pictures in characters, each with a form for terminals that have no Unicode; and durations in words."""

import math
from collections.abc import Sequence

_LEVELS, _ASCII_LEVELS = "▁▂▃▄▅▆▇█", "_.-~=+*#"


def sparkline(values: Sequence[float], width: int, unicode: bool = True) -> str:
    """The last `width` values as one character each, from the lowest of them to the highest; not finite ones are blank."""
    shown = values[-width:] if width > 0 else ()
    finite = [value for value in shown if math.isfinite(value)]
    if not finite:
        return " " * len(shown)
    levels = _LEVELS if unicode else _ASCII_LEVELS
    low, high = min(finite), max(finite)
    scale = (len(levels) - 1) / (high - low) if high > low else 0.0
    return "".join(levels[int((value - low) * scale)] if math.isfinite(value) else " " for value in shown)


def lengths(shares: Sequence[float], width: int) -> list[int]:
    """Characters of each share of a bar: never more than `width` together, none of a share that is not 0 less than one.

    Args:
        shares: from 0 to 1; together at most 1, more or less.
        width: of the bar.
    """
    found: list[int] = []
    for share in shares:
        wanted = max(1, round(share * width)) if share > 0.0 else 0
        found.append(min(wanted, width - sum(found)))
    return found
