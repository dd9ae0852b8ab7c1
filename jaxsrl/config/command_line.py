"""Command lines of configurations. A value that a configuration rejects raises its UserError, which commands print as one line."""

import contextlib
import io
import sys
from typing import Any

from envpool_bridge.errors import UserError


def parse_command_line(kind: Any, **options: Any) -> Any:
    """Returns what `tyro.cli` returns.

    Args:
        kind: type of the configuration.
        **options: Options of `tyro.cli`; without subcommands, and without flags of what a flag cannot give.

    Raises:
        UserError: If a configuration rejected its values.
        SystemExit: If the flags cannot be parsed, or ask for --help; tyro has printed why.
    """
    import tyro

    options = {"config": (tyro.conf.AvoidSubcommands, tyro.conf.SuppressFixed), **options}
    if any(str(flag).startswith("--tyro-") for flag in options.get("args") or sys.argv[1:]):
        return tyro.cli(kind, **{**options, "prog": None})  # prints a completion script, of the program that runs
    handled = sys.exc_info()[1]  # of the caller
    printed = io.StringIO()  # console_outputs leaves the messages of rejected values
    try:
        with contextlib.redirect_stderr(printed):
            value = tyro.cli(kind, console_outputs=False, **options)
    except SystemExit as end:
        if (error := _user_error(end, handled)) is not None:
            raise error from None
    except BaseException:
        sys.stderr.write(printed.getvalue())
        raise
    else:
        sys.stderr.write(printed.getvalue())
        return value
    return tyro.cli(kind, **options)  # again, on the terminal: it prints its message or the help, and exits


def _user_error(end: BaseException, handled: BaseException | None) -> UserError | None:
    """Returns the UserError that tyro was handling when it ended; `handled` is what its caller was handling."""
    error = end.__context__
    while error is not None and error is not handled:
        if isinstance(error, UserError):
            return error
        error = error.__context__
    return None
