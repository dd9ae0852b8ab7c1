"""Population based training of runs: rounds of training, with copies and changed hyper-parameters between them.

Every round of a member is an ordinary run in a directory of its own, which starts from the parameters and the optimizer of a run
of the round before. The state of the population is one file, replaced atomically after each round. A killed population is
continued by the same call: complete runs are kept, interrupted ones resume exactly, so that the result is the same bit for bit.
"""

import dataclasses
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from envpool_bridge.errors import UserError
from jaxsrl.checkpoints.run_directory import write_json
from jaxsrl.config.files import nest_options, option_name
from jaxsrl.config.serialization import to_json
from jaxsrl.experiment import Experiment
from jaxsrl.machine.run_tasks import Task
from jaxsrl.runs.summary import checkpoint_steps, read_final_evaluation
from jaxsrl.terminal.format import format_number
from jaxsrl.tune.managed_runs import OWNED_IN_ROUNDS, Train, open_state, train_task, validate_flags, validate_single
from jaxsrl.tune.pbt import PBTConfig, choose, first_values
from jaxsrl.tune.space import Space, parse_space

STATE = "population.json"
SCORE = "eval.json"
"""File of a run with its evaluation after training: `mean_return` is the score of a member."""


@dataclasses.dataclass(frozen=True)
class PopulationConfig:
    """Settings of a population, which its directory keeps.

    Attributes:
        experiment: path of its file.
        space: options that differ between members, as in a file of ranges.
        members: number of members.
        rounds: number of rounds.
        env_steps: Env steps of each round.
        rule: Choice of who copies whom.
        seed: Seed of initial values, copies and changes; run n, counted over all rounds, has seed + n.
        flags: Flags of the experiment, for all members.
    """

    experiment: str
    space: Mapping[str, Mapping[str, Any]]
    members: int = 8
    rounds: int = 10
    env_steps: int = 50_000
    rule: PBTConfig = dataclasses.field(default_factory=PBTConfig)
    seed: int = 0
    flags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.members < 2 or min(self.rounds, self.env_steps) < 1 or self.seed < 0:
            raise UserError(
                f"a population has at least two members, a round, an env step, and a seed from 0: got {self.members}, "
                f"{self.rounds}, {self.env_steps}, {self.seed}"
            )


class Population:
    """Rounds of a population. One process at a time.

    Args:
        directory: Directory of the population; made if need be.
        config: settings.
        show: receives lines.
        train: runs a round.

    Raises:
        UserError: If the directory holds a population with other settings.
    """

    def __init__(self, directory: Path, config: PopulationConfig, show: Callable[[str], None], train: Train) -> None:
        self._directory, self._config, self._show, self._train = directory, config, show, train
        self._space = parse_space(config.space, "the space of the population")
        self.state = self._open()

    def run(self) -> int:
        """Runs all rounds that are missing; returns 0, or the status of a round that was stopped."""
        self._remove_checkpoints()  # that a killed process left
        while len(self.state["history"]) < self._config.rounds:
            number = len(self.state["history"])
            # A score may be that of an unfinished run, from `jaxsrl evaluate`: complete runs only evaluate again.
            if status := self._train([self._task(number, member) for member in range(self._config.members)]):
                return status
            self._finish_round(number)
        return 0

    def _open(self) -> dict[str, Any]:
        path = self._directory / STATE
        values = first_values(self._space, self._config.members, self._random(0))
        initial = {"members": [{"values": own, "source": None} for own in values], "history": []}
        is_new = not path.is_file()
        state = open_state(path, to_json(self._config), initial, "rounds")
        if is_new:
            write_json(path, state)
        return state

    def _random(self, number: int) -> np.random.Generator:
        # Of the round alone: a population that is continued draws what an uninterrupted one draws.
        return np.random.default_rng((self._config.seed, number))

    def _run_name(self, number: int, member: int) -> str:
        return f"round{number:03d}_member{member:02d}"

    def _task(self, number: int, member: int) -> Task:
        """Returns the command of one member's round, and writes its configuration."""
        config, name, entry = self._config, self._run_name(number, member), self.state["members"][member]
        file = self._directory / f"{name}.json"
        write_json(file, nest_options(entry["values"]))
        flags = ["--config", str(file), *config.flags]
        if entry["source"] is not None:
            source = self._directory / self._run_name(number - 1, entry["source"])
            flags += ["--run.init-from", str(source), "--run.init-optimizer"]
        # A later round does not repeat the episodes of an earlier one.
        seed = config.seed + number * config.members + member
        return train_task(self._directory, name, config.experiment, config.env_steps, seed, flags)

    def _finish_round(self, number: int) -> None:
        """Reads the scores, chooses what each member does next, and replaces the state."""
        members, config = self.state["members"], self._config
        scores = [self._read_score(number, member) for member in range(config.members)]
        values = [entry["values"] for entry in members]
        choices = choose(config.rule, self._space, scores, values, self._random(number + 1))
        record = [{**entry, "score": score} for entry, score in zip(members, scores, strict=True)]
        self.state = {
            **self.state,
            "members": [{"values": dict(choice.values), "source": choice.source} for choice in choices],
            "history": [*self.state["history"], record],
        }
        write_json(self._directory / STATE, self.state)
        for member, choice in enumerate(choices):
            if choice.source != member:
                self._show(f"round {number}: member {member} copies member {choice.source}")
        self._show(
            f"round {number}: best {format_number(max(scores))}, median {format_number(float(np.median(scores)))}"
        )
        self._remove_checkpoints()

    def _remove_checkpoints(self) -> None:
        """Removes the checkpoints of all rounds before the newest complete one: no run starts from them any more."""
        for number in range(len(self.state["history"]) - 1):
            for member in range(self._config.members):
                shutil.rmtree(self._directory / self._run_name(number, member) / "checkpoints", ignore_errors=True)

    def _read_score(self, number: int, member: int) -> float:
        run = self._directory / self._run_name(number, member)
        if not (run / SCORE).is_file():
            raise UserError(
                f"{run / SCORE} is missing: members need an evaluation after training, --eval.final-episodes 20"
            )
        # `jaxsrl evaluate` of an earlier checkpoint may have ended after the run, and replaced its score.
        return float(read_final_evaluation(run, max(checkpoint_steps(run), default=0))["mean_return"])


def validate_members(made: Experiment, space: Space, flags: Sequence[str]) -> None:
    """Rejects experiments whose runs cannot be members, before the first run starts.

    Args:
        made: experiment with the flags.
        space: options that differ between members.
        flags: Flags of the experiment.

    Raises:
        UserError: If a flag would replace the values of all members, or be replaced, or runs would have no score.
    """
    validate_flags(OWNED_IN_ROUNDS, flags, space)
    validate_single(made.run, "member", space)
    names = {option_name(flag.partition("=")[0]): flag for flag in flags if flag.startswith("--")}
    if "config" in names:
        raise UserError("members read their values by --config: give other options as flags, got --config")
    if fixed := sorted(set(names) & set(space)):
        raise UserError(
            f"{names[fixed[0]]} would replace the values of all members: remove it from the flags or the space"
        )
    if made.run.eval.final_episodes < 1:
        raise UserError(
            "members need an evaluation after training: expected --eval.final-episodes of at least 1, got 0"
        )
