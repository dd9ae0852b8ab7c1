"""Lines of progress and warnings, apart from a command's result."""

import sys

from jaxsrl.terminal.format import printable


def show_line(line: str) -> None:
    """Prints a line to standard error at once."""
    print(printable(line), file=sys.stderr, flush=True)  # noqa: T201
