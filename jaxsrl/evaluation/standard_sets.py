"""The standard datasets of a task, made from one training run: random, medium, expert, replay and medium-expert.

Source of the kinds: Fu et al. 2020 (D4RL, arXiv:2004.07219).
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from agents.api import Mode
from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.envs.function_source import AnyEnv
from envpool_bridge.errors import UserError
from jaxsrl.config.run_config import RunConfig
from jaxsrl.config.serialization import from_json
from jaxsrl.datasets.dataset import Dataset, find_episodes, open_dataset
from jaxsrl.datasets.episodes import merge, write_first_steps
from jaxsrl.datasets.manifest import read_manifest, set_scores
from jaxsrl.datasets.writer import is_dataset
from jaxsrl.evaluation.evaluate import evaluate, for_evaluation
from jaxsrl.evaluation.load_agent import LoadedAgent, load_agent
from jaxsrl.evaluation.record import RecordConfig, record, with_random_actions
from jaxsrl.metrics.evaluations import Evaluation, read_evaluations
from jaxsrl.models.store import MODELS, ModelStore
from jaxsrl.runs.read_checkpoint import read_saved_run
from jaxsrl.terminal.format import format_number

SETS = ("random", "medium", "expert", "replay", "medium-expert")
TRAINING = "training"
"""Name of the dataset of all steps of the training run, of which "replay" is the beginning."""
_MEDIUM = 1 / 3
_ENV_STEPS = "requested_env_steps"


@dataclasses.dataclass(frozen=True)
class SetsConfig:
    """Sizes of the sets.

    Attributes:
        env_steps: least number of env steps of each recorded set; its last episodes are recorded to their ends.
        stochastic: sample the actions of medium and expert instead of taking the most likely ones.
        seed: Seed of the first recorded set; the others have the next ones.
    """

    env_steps: int = 100_000
    stochastic: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        if self.env_steps < 1 or self.seed < 0:
            raise UserError(f"expected at least one env step and a seed from 0: got {self.env_steps} and {self.seed}")


@dataclasses.dataclass(frozen=True)
class Levels:
    """Versions of the run that act in the sets.

    Attributes:
        expert: Policy of the highest evaluation return; with a curriculum, at the last stage that the run reached.
        medium: first one at that stage whose return, above the random one, is a third of the expert's; it may be the expert.
    """

    expert: Evaluation
    medium: Evaluation


def choose_levels(evaluations: list[Evaluation], random_return: float) -> Levels:
    """Returns the versions to record.

    Args:
        evaluations: Evaluations of the run, in their order.
        random_return: mean return of random actions.

    Raises:
        UserError: If the run was not evaluated, or has not learned.
    """
    greedy = [each for each in evaluations if each.mode == "greedy"]
    expert = max(greedy, key=lambda each: each.rank, default=None)
    if expert is None or expert.mean_return <= random_return:
        best = "none" if expert is None else format_number(expert.mean_return)
        raise UserError(
            f"expected a run with greedy evaluations above the return of random actions, {format_number(random_return)}: got "
            f"{best}; train with --eval.every, and longer"
        )
    wanted = random_return + _MEDIUM * (expert.mean_return - random_return)
    at_stage = [each for each in greedy if each.stage == expert.stage]
    return Levels(expert, next(each for each in at_stage if each.mean_return >= wanted))


def make_sets(
    run: Path, out: Path, config: SetsConfig, show: Callable[[str], None], env: EnvConfig | AnyEnv | None = None
) -> list[dict[str, Any]]:
    """Writes the sets that are missing, scores all, and returns a description of each.

    Args:
        run: finished run directory with evaluations and the models of all evaluated versions.
        out: directory of the sets, which contains that of all steps of the run, `TRAINING`.
        config: sizes.
        show: receives a line for each set.
        env: environment of the experiment; None for that of the checkpoints.

    Raises:
        UserError: If the run has no evaluations or models, or has not learned.
        UserError: If a set that is there has another origin than the one to write.
    """
    metadata = read_saved_run(run).metadata
    random = RecordConfig(env_steps=config.env_steps, epsilon=1.0, seed=config.seed)
    loaded = load_agent(run, env=env)
    random_return = _random_return(loaded, _record_missing(loaded, run.name, out / "random", random), show)
    kept = {model.version for model in ModelStore(run / MODELS).models()}
    # A run that rolled back has no models of the versions that it abandoned; without any model, `find` says how to save them.
    evaluations = [each for each in read_evaluations(run) if each.update in kept or not kept]
    levels = choose_levels(evaluations, random_return)
    if levels.medium.update == levels.expert.update:
        show(
            f"medium and expert are one version, update {levels.expert.update}: no earlier evaluation reached a third of its "
            f"return; a run with more --evaluations may have one"
        )
    mode = Mode.SAMPLE if config.stochastic else Mode.GREEDY
    for number, (name, level) in enumerate((("medium", levels.medium), ("expert", levels.expert)), 1):
        show(f"{name}: update {level.update}, return {format_number(level.mean_return)}")
        play = RecordConfig(env_steps=config.env_steps, mode=mode, seed=config.seed + number)
        model = ModelStore(run / MODELS).find(str(level.update)).path
        _record_missing(load_agent(model, env=env), model.name, out / name, play)
    count = levels.medium.update * from_json(RunConfig, metadata["experiment"]["run"]).rollout_length
    _write_missing(out / "replay", {"first_steps": count}, lambda path: write_first_steps(out / TRAINING, path, count))
    parts = [out / "medium", out / "expert"]
    merged = {"merged": [{"path": part.name, **open_dataset(part).manifest.origin} for part in parts]}
    _write_missing(out / "medium-expert", merged, lambda path: merge(parts, path))
    rows = []
    for name in SETS:
        set_scores(out / name, random_return, levels.expert.mean_return)
        dataset = open_dataset(out / name)
        mean = mean_return(dataset)
        score = dataset.manifest.normalized_score(mean)
        rows.append({"set": name, "env_steps": dataset.num_valid_steps, "mean_return": mean, "normalized_score": score})
    return rows


def mean_return(dataset: Dataset) -> float:
    """Returns the mean return of the whole episodes of a dataset."""
    return float(np.mean(find_episodes(dataset.steps).returns))


def _random_return(loaded: LoadedAgent, recorded: Dataset, show: Callable[[str], None]) -> float:
    """Returns the mean return of random actions, in the episodes and rewards of evaluations, to which it is compared."""
    source = for_evaluation(loaded.source)
    if source == loaded.source:
        return mean_return(recorded)
    show(
        "evaluation may change episodes or rewards: the returns that count as 0 and as 100 are evaluated, those of the sets are "
        "of training"
    )
    act = with_random_actions(loaded.agent.act, source.spec(), 1.0)
    return evaluate(loaded.agent._replace(act=act), loaded.params, source).mean_return


def _record_missing(loaded: LoadedAgent, name: str, out: Path, config: RecordConfig) -> Dataset:
    """Records the policy of a run or a model of this name unless the set is there."""
    saved_env = loaded.metadata["experiment"]["env"]
    is_random = config.epsilon == 1.0
    agent_name = "random" if is_random else loaded.agent.name
    origin = {"run": name, "agent": agent_name, "update": loaded.update, _ENV_STEPS: config.env_steps}
    wanted = {**origin, "mode": config.mode.value, "seed": config.seed}
    if is_random:
        del wanted["update"]  # a run that was trained further has the same random actions
    saved_env = saved_env if isinstance(saved_env, dict) else None

    def write(place: Path) -> Dataset:
        return record(loaded.agent, loaded.params, loaded.source, place, config, saved_env, origin)

    return _write_missing(out, wanted, write)


def _write_missing(path: Path, origin: dict[str, Any], write: Callable[[Path], Any]) -> Dataset:
    """Writes a dataset unless it is there.

    Args:
        path: directory of the dataset.
        origin: part of its origin.
        write: writes it into a directory.

    Raises:
        UserError: If the dataset that is there has another origin.
    """
    if is_dataset(path):
        _validate_origin(path, origin)
    else:
        write(path)
    return open_dataset(path)


def _validate_origin(path: Path, wanted: dict[str, Any]) -> None:
    """Raises UserError if a dataset differs in a value of its origin; one that an older version did not store is not compared."""
    stored = read_manifest(path).origin
    differences = [
        f"{name} {stored[name]} instead of {value}"
        for name, value in wanted.items()
        if name in stored and stored[name] != value
    ]
    if differences:
        raise UserError(
            f"{path} was written with {', '.join(differences)}: expected the same values; choose another --out, give the earlier "
            f"options, or delete {path}"
        )
