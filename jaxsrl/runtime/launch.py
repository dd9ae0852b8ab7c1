"""What every experiment script shares: command-line flags in, one clear line out for what cannot be done."""

import dataclasses
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from envpool_bridge.errors import UserError
from jaxsrl.config import RunConfig

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
def launch(
    main: Callable[[Experiment], None],
    experiment: type[Experiment],
    description: str | None = None,
    arguments: Sequence[str] | None = None,
) -> None:
    """Parses the command line into `experiment`, splits the host as its RunConfig says, and runs `main` with it.

    Args:
        main: composes and trains.
        experiment: frozen dataclass tree; its RunConfig also takes `--policy NAME` for `--run.policy NAME`.
        description: for --help.
        arguments: the command line's if None.
    """
    import tyro

    parsed = tyro.cli(experiment, args=arguments, description=description)
    num_host_devices = max((run.host_devices for run in _run_configs(parsed)), default=0)
    if num_host_devices:
        from jaxsrl.runtime.host_devices import split_host

        split_host(num_host_devices)
    main(parsed)


def _run_configs(experiment: Any) -> list[RunConfig]:
    if not dataclasses.is_dataclass(experiment):
        return []
    values = [getattr(experiment, field.name) for field in dataclasses.fields(experiment)]
    return [value for value in values if isinstance(value, RunConfig)]
