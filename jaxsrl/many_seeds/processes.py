"""Several seeds as processes: in turn, or next to each other on cores of their own."""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from envpool_bridge.errors import UserError
from envpool_bridge.limits import count_cores
from jaxsrl.config.run_config import RunConfig
from jaxsrl.machine.run_tasks import POLL_SECONDS, Task, run_tasks
from jaxsrl.many_seeds.members import member_configs, member_values


def train_in_processes(
    config: RunConfig, command: Sequence[str], show: Callable[[str], None], poll_seconds: float = POLL_SECONDS
) -> int:
    """Runs a command for each seed of a configuration; returns an exit status.

    A stop signal is passed on to the processes, which save first. The same call resumes them. After a failed seed the others
    stop in the same way. No process remains.

    Args:
        config: Configuration with the number of seeds.
        command: trains the experiment with further flags of one seed.
        show: called with a line for each seed that starts or ends.
        poll_seconds: Time between looks at the processes.

    Returns:
        0; the status of a seed that failed; the status of the signal after a stop signal.

    Raises:
        UserError: If there are fewer cores than `seeds_at_once`, or all seeds would record into one dataset.
    """
    if config.record:
        raise UserError(
            f"run.record is the dataset of one run: got {config.record} with {config.seeds} seeds; remove it, or train the seeds "
            f"one by one (--run.seed)"
        )
    if config.seeds_at_once > count_cores():
        raise UserError(
            f"run.seeds_at_once {config.seeds_at_once}: expected at most one for each of the {count_cores()} cores"
        )
    pairs = zip(member_configs(config), member_values(config), strict=True)
    tasks = [_task_of_seed(config, own, values, command) for own, values in pairs]
    return run_tasks(tasks, config.seeds_at_once, show, poll_seconds)


def _task_of_seed(config: RunConfig, own: RunConfig, values: Mapping[str, float], command: Sequence[str]) -> Task:
    flags = ["--run.seeds", "1", "--run.seeds-at-once", "1", "--run.seed", str(own.seed)]
    flags += ["--run.name", own.name] if own.name else []
    for name, value in values.items():
        option = name.replace("_", "-")
        flags += [f"--run.seed-{option}s", f"--agent.{option}", str(value)]  # the first is an empty list
    output = None
    if config.seeds_at_once > 1:  # next to each other, they would mix their lines on the terminal
        directory = Path(own.directory)
        directory.mkdir(parents=True, exist_ok=True)
        output = directory / f"{config.name or 'seeds'}_seed{own.seed}.txt"
    return Task(f"seed {own.seed}", [*command, *flags], output)


def this_command() -> list[str]:
    """Returns the command line of this process, so that the same program starts again."""
    return [sys.executable, *sys.orig_argv[1:]]
