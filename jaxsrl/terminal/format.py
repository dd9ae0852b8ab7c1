"""Numbers, sizes, durations and names as text."""

import re
from collections.abc import Sequence

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def printable(text: str) -> str:
    r"""Returns a text in which escapes replace control characters and bytes that are no UTF-8, as names of files have them.

    Examples:
        >>> printable("\x1b[31mred"), printable("bad\udcff")
        ('\\x1b[31mred', 'bad\\udcff')
    """
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def format_bytes(number: int) -> str:
    """Returns bytes with a binary unit and three significant digits.

    Examples:
        >>> format_bytes(640), format_bytes(1_310_720)
        ('640 B', '1.25 MiB')
    """
    amount, unit = float(number), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{number} B" if unit == "B" else f"{amount:.3g} {unit}" if amount < 1000 else f"{amount:.0f} {unit}"


def format_ranges(numbers: Sequence[int]) -> str:
    """Returns ascending numbers with runs of consecutive ones as ranges.

    Examples:
        >>> format_ranges((0, 1, 2, 3, 6))
        '0-3, 6'
    """
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def format_duration(seconds: float) -> str:
    """Returns a duration in its two largest units.

    Examples:
        >>> format_duration(45.0), format_duration(7500.0)
        ('45 s', '2 h 5 min')
    """
    whole = max(0, round(seconds))
    for unit, size, smaller, part in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // part} {smaller}"
    return f"{whole} s"


def format_age(seconds: float) -> str:
    """Returns a duration in its largest unit."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def format_number(value: float) -> str:
    """Returns a number with three or four significant digits, and with an exponent where that would be long.

    Examples:
        >>> format_number(0.0123), format_number(312.42), format_number(12345.0)
        ('0.0123', '312.4', '12,345')
    """
    size = abs(value)
    for least, decimals in ((1e3, 0), (1e2, 1), (1.0, 2), (1e-2, 4)):
        if size >= least:
            return f"{value:,.{decimals}f}" if size < 1e7 else f"{value:.3g}"
    return f"{value:.3g}"  # small, or not a number
