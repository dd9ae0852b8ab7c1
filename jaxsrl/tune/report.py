"""Results of a sweep: its trials, its best configuration, and the study for analysis."""

import dataclasses
import warnings
from pathlib import Path
from typing import Any

from envpool_bridge.errors import UserError
from jaxsrl.checkpoints.run_directory import CONFIG, read_json
from jaxsrl.config.files import flag_name, read_config_file
from jaxsrl.terminal.tables import print_tables
from jaxsrl.tune.study import RESULT, Sweep, drawn_trials, import_optuna, open_study, trial_name, trial_options

BEST = "best.yaml"


@dataclasses.dataclass(frozen=True)
class TrialResult:
    """A trial of a sweep.

    Attributes:
        number: Number from 0.
        state: "complete", "pruned", "fail" or "running".
        value: return of the final evaluation; of a pruned trial, the newest return that it reported. None if there is none.
        env_steps: trained so far; 0 for a trial that did not finish.
        options: values by dotted names.
    """

    number: int
    state: str
    value: float | None
    env_steps: int
    options: dict[str, Any]


def read_results(directory: Path, sweep: Sweep) -> list[TrialResult]:
    """Returns the trials of a sweep, by number.

    Raises:
        UserError: optuna is not installed.
    """
    space, results = sweep.parse_space(), []
    for trial in drawn_trials(open_study(directory, sweep), space):
        path = directory / trial_name(trial.number) / RESULT
        result = read_json(path) if path.exists() else {"value": None, "env_steps": 0}
        options = trial_options(space, trial.params)
        state = trial.state.name.lower()
        results.append(TrialResult(trial.number, state, result["value"], result["env_steps"], options))
    return results


def find_best(results: list[TrialResult]) -> TrialResult | None:
    """Returns the complete trial with the highest return; None if no trial is complete."""
    complete = [result for result in results if result.state == "complete" and result.value is not None]
    return max(complete, key=lambda result: result.value or 0.0, default=None)


def write_best(directory: Path, results: list[TrialResult]) -> Path | None:
    """Writes the configuration of the best trial, without the name and place of its run; returns the file.

    `jaxsrl train EXPERIMENT --config FILE` trains it. None if no trial is complete.
    """
    import yaml

    best = find_best(results)
    if best is None:
        return None
    options = read_config_file(directory / trial_name(best.number) / CONFIG).options
    run = {name: value for name, value in options["run"].items() if name not in ("name", "directory")}
    path = directory / BEST
    header = f"# {trial_name(best.number)}: return {best.value:g} after {best.env_steps} env steps\n"
    path.write_text(header + yaml.safe_dump({**options, "run": run}, sort_keys=False))
    return path


def print_results(directory: Path, results: list[TrialResult], as_json: bool) -> None:
    """Prints the trials, best first, as a table or one JSON object."""
    order = sorted(results, key=lambda each: (each.state != "complete", -(each.value or 0.0)))
    rows = [
        {"trial": each.number, "state": each.state, "return": each.value, "env_steps": each.env_steps}
        | {flag_name(name): value for name, value in each.options.items()}
        for each in order
    ]
    print_tables({"trials": rows}, as_json, f"sweep {directory}")


def measure_importance(directory: Path, sweep: Sweep, results: list[TrialResult]) -> dict[str, float]:
    """Returns the share of each option in the differences between good trials and all trials, by PED-ANOVA.

    A pruned trial counts with the newest return that it reported.

    Args:
        directory: Directory of the sweep.
        sweep: Settings of the sweep.
        results: Trials of the sweep.

    Raises:
        UserError: fewer than two trials have a return.
    """
    optuna = import_optuna()
    values = {each.number: each.value for each in results if each.value is not None}
    if len(values) < 2:
        raise UserError(f"importance needs at least two trials with a return: {directory} has {len(values)}")
    study = optuna.create_study(direction="maximize")
    for trial in open_study(directory, sweep).get_trials():
        if trial.number in values:
            params, distributions = trial.params, trial.distributions
            study.add_trial(
                optuna.trial.create_trial(params=params, distributions=distributions, value=values[trial.number])
            )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        warnings.simplefilter("ignore", UserWarning)  # few trials
        evaluator = optuna.importance.PedAnovaImportanceEvaluator()
        return dict(optuna.importance.get_param_importances(study, evaluator=evaluator))
