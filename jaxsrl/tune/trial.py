"""One trial: an ordinary run that reports returns to the study, in a process of its own."""

import dataclasses
import math
import sys
from pathlib import Path
from typing import Any

from jaxsrl.checkpoints.run_directory import CONFIG, write_json
from jaxsrl.experiment import TrainReport
from jaxsrl.machine.cpu_dispatch import use_synchronous_cpu_dispatch
from jaxsrl.machine.lifecycle import exit_now, exit_on_user_error, exit_status, stop_on_signals
from jaxsrl.metrics.evaluations import Evaluation
from jaxsrl.training.active_run import ActiveRun
from jaxsrl.training.callbacks import Callback
from jaxsrl.tune.study import RESULT, import_optuna, open_study, read_sweep, trial_name, trial_options

PRUNED = "pruned"
"""Reason of the stop, and name of the attribute by which the study holds the decision of the pruner."""


class ReportReturns(Callback):
    """Reports returns to the study, and stops the run where the pruner says so.

    The returns are those of evaluation with `--eval.every`, otherwise the mean of recent training episodes.

    Args:
        trial: optuna's trial.
        reports: reports of training returns of the whole run.
        last: newest report of an earlier process of the run, by its number; -1 for none.
    """

    def __init__(self, trial: Any, reports: int, last: int = -1) -> None:
        self._trial, self._reports, self._last = trial, reports, last

    def on_start(self, run: ActiveRun) -> None:
        # An earlier process may have been killed after its last report, or after the stop and before the result.
        if self._last >= 0:
            self._stop_if_pruned(run)

    def on_update(self, run: ActiveRun) -> None:
        # Dispatches of several updates may skip the update at a multiple.
        if run.config.eval.every or self._number(run, run.env_steps) <= max(self._last, 0):
            return
        mean = run.episodes().get("episode/return_mean")
        if mean is not None:
            self._report(run, run.env_steps, mean)

    def on_evaluation(self, run: ActiveRun, evaluation: Evaluation) -> None:
        if run.config.eval.mode in (evaluation.mode, "both") and (
            evaluation.mode == "greedy" or run.config.eval.mode == "sample"
        ):
            self._report(run, evaluation.env_steps, evaluation.mean_return)

    def _report(self, run: ActiveRun, env_steps: int, value: float) -> None:
        step = self._number(run, env_steps)
        if step <= self._last or not math.isfinite(value):
            return
        self._last = step
        self._trial.report(value, step)
        self._stop_if_pruned(run)

    def _stop_if_pruned(self, run: ActiveRun) -> None:
        # An evaluation may arrive after the last update: the run is complete.
        if run.num_updates >= run.config.num_updates:
            return
        # Successive halving decides once about each rung: asked again, it lets the trial continue.
        if self._trial.user_attrs.get(PRUNED) or self._trial.should_prune():
            self._trial.set_user_attr(PRUNED, True)
            run.stop(PRUNED)

    def _number(self, run: ActiveRun, env_steps: int) -> int:
        """Returns the number of the report at `env_steps`."""
        config = run.config  # not the experiment's: a budget of gradient steps limits the env steps
        every = config.eval.every or max(1, config.num_updates * config.env_steps_per_update // self._reports)
        return env_steps // every


def train_trial(directory: Path, number: int) -> str:
    """Trains a trial of a sweep and writes its result; returns the signal that stopped it, "" if none did.

    A trial that has a result is complete: it starts again where its node was lost before the manager read the exit status.

    Args:
        directory: Directory of the sweep.
        number: Number of the trial, which the study holds with its parameters.
    """
    if (directory / trial_name(number) / RESULT).exists():
        return ""
    optuna, sweep = import_optuna(), read_sweep(directory)
    study = open_study(directory, sweep)
    stored = next(trial for trial in study.get_trials(deepcopy=False) if trial.number == number)
    # As `python FILE` does: workers import modules next to the file too.
    sys.path.insert(0, str(Path(sweep.experiment).resolve().parent))
    experiment = sweep.make_experiment(trial_options(sweep.parse_space(), stored.params))
    run = dataclasses.replace(experiment.run, name=trial_name(number), directory=str(directory))
    experiment = dataclasses.replace(experiment, run=run)
    use_synchronous_cpu_dispatch()
    trial = optuna.trial.Trial(study, stored._trial_id)
    callback = ReportReturns(trial, sweep.reports, max(stored.intermediate_values, default=-1))
    report = experiment.train(callbacks=[callback])
    if not report.stopped_by:
        newest = study.get_trials(deepcopy=False)[number].intermediate_values
        write_json(directory / trial_name(number) / RESULT, _result(report, newest))
    return report.stopped_by


def _result(report: TrainReport, reported: dict[int, float]) -> dict[str, Any]:
    is_pruned = report.stop_reason == PRUNED
    value = reported[max(reported)] if reported else None
    if report.evaluation is not None and not is_pruned:
        value = report.evaluation.mean_return
    return {"is_pruned": is_pruned, "value": value, "env_steps": report.env_steps}


@exit_on_user_error
def main() -> None:
    """Trains the trial that the command line names by the sweep's directory and its number.

    Raises:
        SystemExit: If a signal stopped the run.
    """
    directory, number = Path(sys.argv[1]), int(sys.argv[2])
    # The command that trains the trial again without its sweep, for provenance.json.
    sys.argv = [read_sweep(directory).experiment, "--config", str(directory / trial_name(number) / CONFIG)]
    with stop_on_signals(exit_now):
        stopped_by = train_trial(directory, number)
    if stopped_by:
        sys.exit(exit_status(stopped_by))
