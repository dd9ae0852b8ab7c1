"""Several seeds as processes: in turn, or next to each other on cores of their own."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from envpool_bridge.errors import UserError
from jaxsrl.config.run_config import RunConfig
from jaxsrl.machine.bound_command import bound_command
from jaxsrl.machine.lifecycle import exit_status, stop_on_signals
from jaxsrl.machine.resources import count_cores
from jaxsrl.many_seeds.members import member_configs

_POLL_SECONDS = 0.2
_STOP_SECONDS = 300.0  # a run saves before it stops


def train_in_processes(
    config: RunConfig, command: Sequence[str], show: Callable[[str], None], poll_seconds: float = _POLL_SECONDS
) -> int:
    """Runs a command for each seed of a configuration; returns an exit status.

    A stop signal is passed on to the processes, which save first. The same call resumes them. After a failed seed the others
    stop in the same way. No process remains.

    Args:
        config: with the number of seeds.
        command: trains the experiment with further flags of one seed.
        show: called with a line for each seed that starts or ends.
        poll_seconds: between looks at the processes.

    Returns:
        0; the status of a seed that failed; the status of the signal after a stop signal.

    Raises:
        UserError: there are fewer cores than `seeds_at_once`.
    """
    if config.seeds_at_once > count_cores():
        raise UserError(
            f"run.seeds_at_once {config.seeds_at_once}: expected at most one for each of the {count_cores()} cores"
        )
    return _Processes(config, command, show, poll_seconds).run()


class _Processes:
    """Processes of the seeds. Thread-safety: the main thread."""

    def __init__(
        self, config: RunConfig, command: Sequence[str], show: Callable[[str], None], poll_seconds: float
    ) -> None:
        self._config, self._command, self._show, self._poll_seconds = config, command, show, poll_seconds
        self._waiting = member_configs(config)
        self._cores = _divide_cores(min(config.seeds_at_once, len(self._waiting)))
        self._running: dict[int, tuple[subprocess.Popen[bytes], set[int]]] = {}
        self._stop = threading.Event()
        self._signal = ""
        self._status = 0

    def run(self) -> int:
        """Runs all seeds to their ends."""
        with stop_on_signals(self._request_stop):
            try:
                while not self._stop.is_set() and (self._waiting or self._running):
                    while self._waiting and self._cores:
                        self._start(self._waiting.pop(0), self._cores.pop(0))
                    self._stop.wait(self._poll_seconds)
                    self._collect()
                for process, _ in self._running.values():
                    process.send_signal(signal.Signals[self._signal] if self._signal else signal.SIGTERM)
                deadline = time.monotonic() + _STOP_SECONDS
                for process, _ in self._running.values():
                    process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                self._show(f"seeds did not stop within {_STOP_SECONDS:.0f} s and were killed")
            finally:
                for process, _ in self._running.values():
                    process.kill()
                    process.wait()
        return exit_status(self._signal) if self._signal else self._status

    def _request_stop(self, signal_name: str) -> None:
        self._signal = signal_name
        self._stop.set()

    def _start(self, own: RunConfig, cores: set[int]) -> None:
        flags = ["--run.seeds", "1", "--run.seeds-at-once", "1", "--run.seed", str(own.seed)]
        flags += ["--run.name", own.name] if own.name else []
        output = self._output(own)
        with _only_cores(cores), contextlib.ExitStack() as held:
            file = None if output is None else held.enter_context(open(output, "ab"))
            # A session of its own: a terminal's Ctrl-C reaches it only through this process.
            process = subprocess.Popen(
                bound_command([*self._command, *flags]), stdout=file, stderr=file, start_new_session=True
            )
        self._running[own.seed] = process, cores
        self._show(f"seed {own.seed} starts" + (f": see {output}" if output else ""))

    def _output(self, own: RunConfig) -> Path | None:
        """Returns the file for the output of a seed; None for the terminal, where seeds run in turn."""
        if self._config.seeds_at_once == 1:
            return None
        directory = Path(own.directory)
        directory.mkdir(parents=True, exist_ok=True)
        return directory / f"{self._config.name or 'seeds'}_seed{own.seed}.txt"

    def _collect(self) -> None:
        """Removes processes that have ended; after a failure, stops the others."""
        for seed, (process, cores) in list(self._running.items()):
            status = process.poll()
            if status is None or self._signal:  # a stopped seed resumes later
                continue
            del self._running[seed]
            self._cores.append(cores)
            self._show(f"seed {seed} is complete" if status == 0 else f"seed {seed} ended with exit status {status}")
            if status != 0:
                self._status = status if status > 0 else 128 - status
                self._stop.set()


def _divide_cores(num_parts: int) -> list[set[int]]:
    """Returns the cores of this process in parts; an empty set where the system has no affinity (macOS)."""
    if not hasattr(os, "sched_getaffinity"):
        return [set() for _ in range(num_parts)]
    cores = sorted(os.sched_getaffinity(0))
    return [set(cores[part::num_parts]) for part in range(num_parts)]


@contextlib.contextmanager
def _only_cores(cores: set[int]) -> Iterator[None]:
    """Gives processes that start inside only these cores."""
    if not cores or cores == os.sched_getaffinity(0):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def this_command() -> list[str]:
    """Returns the command line of this process, so that the same program starts again."""
    return [sys.executable, *sys.orig_argv[1:]]
