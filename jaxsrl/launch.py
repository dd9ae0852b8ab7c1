"""What every experiment script shares: command-line flags in, one clear line out for what cannot be done."""

import dataclasses
import functools
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

from envpool_bridge.errors import UserError
from jaxsrl.cluster.learners.errors import LostLearnerError
from jaxsrl.cluster.protocol.engine import ReplayLostError
from jaxsrl.config.learner_processes import DistributedConfig
from jaxsrl.config.run_config import RunConfig
from jaxsrl.machine.lifecycle import REQUEUE_STATUS, exit_now, has_stuck_threads, stop_on_signals

Experiment = TypeVar("Experiment")


def exit_on_user_error(function: Callable[..., Any]) -> Callable[..., Any]:
    """Turns UserError into one line on stderr and exit status 2; learner processes or replay that were lost, into status 75."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)  # noqa: T201
            _end(2)
        except (LostLearnerError, ReplayLostError) as error:
            print(f"error: {error}", file=sys.stderr)  # noqa: T201
            _end(REQUEUE_STATUS)
        except Exception:
            if not _has_joined_others():
                raise
            traceback.print_exc()
            _end(1)

    return wrapped


@exit_on_user_error
def launch(
    main: Callable[[Experiment], None],
    experiment: type[Experiment],
    description: str | None = None,
    arguments: Sequence[str] | None = None,
) -> None:
    """Parses the command line into `experiment`, splits the host as its RunConfig says, and runs `main` with it.

    Training saves before it stops. A stop signal before or after training ends the process at once: `finally` and `with` blocks
    of `main` do not run, and neither do handlers of atexit. Raising SystemExit instead crashes the process (status 139) where
    the signal interrupts a compilation of jax.

    Args:
        main: composes and trains.
        experiment: frozen dataclass tree; its RunConfig also takes `--policy NAME` for `--run.policy NAME`.
        description: for --help.
        arguments: the command line's if None.
    """
    import tyro

    parsed = tyro.cli(experiment, args=arguments, description=description)
    from jaxsrl.machine.cpu_dispatch import use_synchronous_cpu_dispatch  # imports jax, which --help need not wait for

    use_synchronous_cpu_dispatch()
    num_host_devices = max((run.host_devices for run in _run_configs(parsed)), default=0)
    distributed = next((run.distributed for run in _run_configs(parsed) if run.distributed.is_on), None)
    if distributed is not None and _joins(distributed, num_host_devices):
        pass  # which has split the host too
    elif num_host_devices:
        from jaxsrl.machine.split_cpu import set_num_cpu_devices

        set_num_cpu_devices(num_host_devices)
    with stop_on_signals(exit_now):
        main(parsed)


def _end(status: int) -> NoReturn:
    """Exits; at once from among learner processes, where jax's own farewell would wait for the others, or be aborted with them."""
    if _has_joined_others() or has_stuck_threads():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


def _has_joined_others() -> bool:
    jax = sys.modules.get("jax")
    return jax is not None and jax.distributed.is_initialized()


def _joins(distributed: DistributedConfig, num_host_devices: int) -> bool:
    """Joins the other learner processes, unless nothing is to be trained."""
    from jaxsrl.cluster.learners.processes import join
    from jaxsrl.experiment import training_is_skipped

    return not training_is_skipped() and join(distributed, num_host_devices) is not None


def _run_configs(experiment: Any) -> list[RunConfig]:
    if not dataclasses.is_dataclass(experiment):
        return []
    values = [getattr(experiment, field.name) for field in dataclasses.fields(experiment)]
    return [value for value in values if isinstance(value, RunConfig)]
