"""A sweep in its directory: settings, storage of trials, and their run directories."""

# optuna is an extra, so that type checkers may not have it:
# pyright: reportMissingImports=false

import dataclasses
import logging
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from envpool_bridge.errors import UserError
from jaxsrl.checkpoints.run_directory import read_json, write_json
from jaxsrl.config.files import nest_options, with_file_options
from jaxsrl.experiment import Experiment, load_experiment
from jaxsrl.tune.space import Choices, Space, parse_space

SWEEP, RESULT = "sweep.json", "trial.json"
Pruner = Literal["asha", "hyperband", "median", "none"]
_STORAGE = "study.db"
_LOCK_SECONDS = 60.0  # longest wait for another process that writes the storage


@dataclasses.dataclass(frozen=True)
class Sweep:
    """Settings of a sweep, which every trial reads.

    Attributes:
        experiment: path of its file.
        space: Space, as its file holds it.
        flags: Flags of the experiment, for all trials.
        pruner: Rule by which trials stop early.
        sampler: how values are chosen.
        reports: number of values that each trial reports to the pruner.
        seed: Seed of the sampler.
    """

    experiment: str
    space: dict[str, Any]
    flags: tuple[str, ...] = ()
    pruner: Pruner = "asha"
    sampler: Literal["tpe", "random"] = "tpe"
    reports: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        if self.reports < 2:
            raise UserError(f"tune.reports must be at least 2: got {self.reports}")
        if self.seed < 0:
            raise UserError(f"the seed must be at least 0: got {self.seed}")

    def parse_space(self) -> Space:
        """Returns the search space."""
        return parse_space(self.space, "the space")

    def make_experiment(self, options: Mapping[str, Any]) -> Experiment:
        """Returns the experiment with the flags of the sweep and options by dotted names.

        Raises:
            UserError: If an option is unknown or not valid.
        """
        experiment = load_experiment(Path(self.experiment), self.flags)
        return with_file_options(experiment, nest_options(options), "the space")


def save_sweep(directory: Path, sweep: Sweep) -> None:
    """Writes the settings into the sweep's directory, or compares them with those that are there.

    Raises:
        UserError: If the directory holds another sweep.
    """
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / SWEEP
    if not path.exists():
        write_json(path, dataclasses.asdict(sweep))
    elif read_sweep(directory) != sweep:
        raise UserError(f"{directory} holds a sweep with other settings: choose another --directory, or see {path}")


def read_sweep(directory: Path) -> Sweep:
    """Returns the settings of the sweep in a directory.

    Raises:
        UserError: If there is none.
    """
    if not (directory / SWEEP).is_file():
        raise UserError(f"{directory} holds no sweep: expected the directory of a `jaxsrl tune`, with {SWEEP} in it")
    data = read_json(directory / SWEEP)
    return Sweep(**{**data, "flags": tuple(data["flags"])})


def trial_name(number: int) -> str:
    """Returns the name of a trial's run directory in the sweep's directory."""
    return f"trial_{number:03d}"


def trial_options(space: Space, params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of a trial by option, from the parameters that the study stores."""
    entries = {name: (space[name], value) for name, value in params.items()}
    return {
        name: entry.values[value] if isinstance(entry, Choices) else value for name, (entry, value) in entries.items()
    }


def drawn_trials(study: Any, space: Space) -> list[Any]:
    """Returns the trials of optuna's study that have all values: without those of a sweep that was killed while it drew them."""
    return [trial for trial in study.get_trials(deepcopy=False) if set(trial.params) == set(space)]


def open_study(directory: Path, sweep: Sweep) -> Any:
    """Returns optuna's study of the sweep in a directory, which several processes may open.

    Raises:
        UserError: optuna is not installed.
    """
    optuna = import_optuna()
    database = optuna.storages.RDBStorage(
        f"sqlite:///{(directory / _STORAGE).absolute()}", engine_kwargs={"connect_args": {"timeout": _LOCK_SECONDS}}
    )
    pruner = _make_pruner(optuna.pruners, sweep)
    return optuna.create_study(
        study_name="sweep", storage=database, pruner=pruner, direction="maximize", load_if_exists=True
    )


def make_sampler(sweep: Sweep, number: int, parallel: bool) -> Any:
    """Returns the sampler of one trial: a sweep that is continued draws what an uninterrupted one draws.

    Args:
        sweep: settings.
        number: Number of the trial.
        parallel: trials run at the same time; then the sampler avoids the neighborhood of those that run.
    """
    optuna = import_optuna()
    seed = int(np.random.SeedSequence((sweep.seed, number)).generate_state(1)[0])
    if sweep.sampler == "random":
        return optuna.samplers.RandomSampler(seed=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.samplers.TPESampler(seed=seed, constant_liar=parallel)


def import_optuna() -> Any:
    """Returns the module optuna, which logs warnings only.

    Raises:
        UserError: If it is not installed.
    """
    try:
        import optuna
    except ImportError as error:
        raise UserError("optuna is not installed, which chooses the trials: pip install 'jaxsrl[tune]'") from error
    optuna.logging.set_verbosity(logging.WARNING)
    return optuna


def _make_pruner(pruners: Any, sweep: Sweep) -> Any:
    if sweep.pruner == "asha":
        return pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=3)
    if sweep.pruner == "hyperband":
        return pruners.HyperbandPruner(min_resource=1, max_resource=sweep.reports, reduction_factor=3)
    return pruners.MedianPruner() if sweep.pruner == "median" else pruners.NopPruner()
