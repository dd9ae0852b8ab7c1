"""Lines of progress and warnings, apart from a command's result."""

import sys


def show_line(line: str) -> None:
    """Prints a line to standard error at once."""
    print(line, file=sys.stderr, flush=True)  # noqa: T201
