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


def duration(seconds: float) -> str:
    """In its two largest units: 45 s, 3 min 20 s, 2 h 5 min, 3 d 4 h."""
    whole = max(0, round(seconds))
    for unit, size, smaller, part in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // part} {smaller}"
    return f"{whole} s"


def number(value: float) -> str:
    """Three or four digits that count: 0.0123, 1.25, 312.4, 12,345; with an exponent where that would be long."""
    size = abs(value)
    for least, decimals in ((1e3, 0), (1e2, 1), (1.0, 2), (1e-2, 4)):
        if size >= least:
            return f"{value:,.{decimals}f}" if size < 1e7 else f"{value:.3g}"
    return f"{value:.3g}"  # small, or not a number
