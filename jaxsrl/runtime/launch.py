"""What every experiment script shares: command-line flags in, one clear line out for what cannot be done."""

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from envpool_bridge.errors import UserError

Experiment = TypeVar("Experiment")


def exit_on_user_error(function: Callable[..., Any]) -> Callable[..., Any]:
    """Turns UserError into one line on stderr and exit status 2."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)  # noqa: T201
            sys.exit(2)

    return wrapped


@exit_on_user_error
def launch(main: Callable[[Experiment], None], experiment: type[Experiment], description: str | None = None) -> None:
    """Parses the command line into `experiment` and runs `main` with it."""
    import tyro

    main(tyro.cli(experiment, description=description))
