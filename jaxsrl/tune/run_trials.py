"""Trials of a sweep as processes: started, resumed, and recorded in the study."""

# pyright: reportMissingImports=false

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from envpool_bridge.errors import EnvPoolError
from jaxsrl.checkpoints.run_directory import read_json
from jaxsrl.machine.lifecycle import exit_status, stop_on_signals
from jaxsrl.machine.python_command import python_command
from jaxsrl.machine.run_tasks import Process, ResumedProcess, Start, Task, start_here, stop_processes
from jaxsrl.terminal.format import format_number
from jaxsrl.tune.study import RESULT, Sweep, drawn_trials, import_optuna, make_sampler, open_study, trial_name

_POLL_SECONDS = 0.2
_TRAIN_TRIAL = "from jaxsrl.tune.trial import main; main()"


def run_trials(
    directory: Path,
    sweep: Sweep,
    trials: int,
    jobs: int,
    show: Callable[[str], None],
    start: Start | None = None,
) -> int:
    """Runs a sweep until the study has `trials` trials; those that an earlier call left unfinished resume first.

    A stop signal stops the trials, which save first. The same call resumes them.

    Args:
        directory: Directory of the sweep, which `save_sweep` made.
        sweep: Settings of the sweep.
        trials: Trials of the whole sweep, also those of earlier calls.
        jobs: trials at the same time.
        show: called with each line of progress.
        start: starts the process of a trial; None for processes of this machine.

    Returns:
        0; 1 if a trial failed, also in an earlier call; the status of the signal after a stop signal.
    """
    runner = _Runner(directory, sweep, trials, jobs, show, start or start_here)
    with stop_on_signals(runner.request_stop):
        runner.run()
    return exit_status(runner.stop_signal) if runner.stop_signal else int(runner.has_failed)


class _Runner:
    """Processes of trials. Thread-safety: one thread.

    Attributes:
        stop_signal: name of the signal that stopped the sweep; "" without one.
    """

    def __init__(
        self,
        directory: Path,
        sweep: Sweep,
        trials: int,
        jobs: int,
        show: Callable[[str], None],
        start: Start,
    ) -> None:
        self._start = start
        # No threading.Event: a signal's handler would wait forever for a lock that the code below it holds.
        self.stop_signal = ""
        self._directory, self._sweep, self._trials, self._jobs, self._show = directory, sweep, trials, jobs, show
        self._space, self._states = sweep.parse_space(), import_optuna().trial.TrialState
        self._study: Any = open_study(directory, sweep)
        self._processes: dict[int, Process] = {}
        self._unfinished: list[int] = []

    def request_stop(self, signal_name: str) -> None:
        """Makes `run` stop the trials."""
        self.stop_signal = signal_name

    @property
    def has_failed(self) -> bool:
        """Returns whether a trial failed, in this call or an earlier one."""
        return any(trial.state == self._states.FAIL for trial in drawn_trials(self._study, self._space))

    def run(self) -> None:
        """Runs trials until all are finished or `request_stop` is called. No process remains."""
        self._read_unfinished()
        try:
            while not self.stop_signal and (self._start_missing() or self._processes):
                time.sleep(_POLL_SECONDS)
                self._collect()
        finally:
            stop_processes(list(self._processes.values()), "SIGTERM", self._show)

    def _collect(self) -> None:
        """Records trials that have ended; one that is stopped stays unfinished."""
        for number, process in list(self._processes.items()):
            try:
                status = process.poll()
            except EnvPoolError:
                if self.stop_signal:
                    continue
                raise
            if status is not None and not self.stop_signal:
                del self._processes[number]
                self._record(number, status)

    def _read_unfinished(self) -> None:
        """Finds the trials that run in the storage, but in no process."""
        for trial in self._study.get_trials(deepcopy=False, states=(self._states.RUNNING,)):
            if set(trial.params) != set(self._space):
                self._study.tell(trial.number, state=self._states.FAIL)
            elif (self._directory / trial_name(trial.number) / RESULT).exists():
                self._record(trial.number, 0)
            else:
                self._unfinished.append(trial.number)

    def _start_missing(self) -> bool:
        """Starts trials until all jobs are busy or none is left; returns whether it started any."""
        started = False
        while len(self._processes) < self._jobs and (number := self._next_number()) is not None:
            name = trial_name(number)
            command = python_command(_TRAIN_TRIAL, str(self._directory), str(number))
            task = Task(name, command, self._directory / f"{name}.txt")
            self._processes[number] = ResumedProcess(task, self._start, self._show, lambda: self.stop_signal)
            started = True
        return started

    def _next_number(self) -> int | None:
        if self._unfinished:
            number = self._unfinished.pop(0)
            self._show(f"{trial_name(number)} resumes")
            return number
        number = len(drawn_trials(self._study, self._space))
        if number >= self._trials:
            return None
        self._study.sampler = make_sampler(self._sweep, number, parallel=self._jobs > 1)
        trial = self._study.ask()
        values = {name: entry.suggest(trial, name) for name, entry in self._space.items()}
        self._show(f"{trial_name(trial.number)} starts: {format_options(values)}")
        return trial.number

    def _record(self, number: int, status: int) -> None:
        """Records the end of a trial in the study."""
        path = self._directory / trial_name(number) / RESULT
        result = read_json(path) if status == 0 and path.exists() else {"value": None}
        if result["value"] is None:
            self._study.tell(number, state=self._states.FAIL)
            self._show(
                f"{trial_name(number)} failed with exit status {status}: see {self._directory / trial_name(number)}.txt"
            )
            return
        if result["is_pruned"]:
            self._study.tell(number, state=self._states.PRUNED)
        else:
            self._study.tell(number, result["value"])
        verb = "was pruned" if result["is_pruned"] else "is complete"
        value: Any = result["value"]
        shown = f"return {format_number(value)} after {result['env_steps']:,} env steps"
        self._show(f"{trial_name(number)} {verb}: {shown}")


def format_options(options: dict[str, Any]) -> str:
    """Returns options on one line, by the last parts of their names."""
    values = {name.rpartition(".")[2]: value for name, value in options.items()}
    return ", ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in values.items()
    )
