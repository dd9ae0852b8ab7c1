"""PSRO of runs in a symmetric game of two sides: each policy is trained against a mixture of those before it.

Every policy is an ordinary run. The state is one file, replaced atomically when a policy has been trained and has played the
others. The same call continues after a kill, with the same result.

Source: Lanctot et al. 2017 (arXiv:1711.00832). Best responses are approximate, by the experiment's algorithm.
"""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from envpool_bridge.errors import UserError
from jaxsrl.checkpoints.run_directory import write_json
from jaxsrl.config.serialization import to_json
from jaxsrl.machine.run_tasks import Task
from jaxsrl.population.meta_game import SOLVERS
from jaxsrl.terminal.format import format_number
from jaxsrl.tune.managed_runs import Train, open_state, opponent_flags, train_task, validate_games

STATE = "psro.json"
_LEAST_WEIGHT = 1e-3  # of the largest; smaller ones become 0


@dataclasses.dataclass(frozen=True)
class PSROConfig:
    """Settings, which the directory keeps.

    Attributes:
        experiment: path of its file.
        iterations: number of policies.
        env_steps: Env steps of each run.
        games: Games of each pair of policies, half from each side.
        solver: Solver of the game between policies: "nash", "uniform", "replicator_dynamics" or "regret_matching".
        slots: opponents that act at the same time in a run.
        seed: Seed of the first run; each further run has the next one.
        flags: Flags of the experiment.
    """

    experiment: str
    iterations: int = 10
    env_steps: int = 100_000
    games: int = 1_000
    solver: Literal["nash", "uniform", "replicator_dynamics", "regret_matching"] = "nash"
    slots: int = 4
    seed: int = 0
    flags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if min(self.iterations, self.env_steps, self.slots) < 1 or self.seed < 0:
            raise UserError(
                f"PSRO has at least one iteration, env step and slot, and a seed from 0: got {self.iterations}, "
                f"{self.env_steps}, {self.slots}, {self.seed}"
            )
        validate_games(self.games)
        if self.solver not in SOLVERS:
            raise UserError(f"solver must be one of {', '.join(SOLVERS)}: got {self.solver!r}")


PlayNewest = Callable[[Sequence[Path], int, int], list[float]]
"""Maps the runs of all policies, games and seed to the mean returns of the newest against each earlier one."""


class PSRO:
    """Policies that are trained one after another. One process at a time.

    Args:
        directory: Directory of the runs; made if need be.
        config: settings.
        play: plays the games.
        show: receives lines.
        train: runs a command.

    Raises:
        UserError: If the directory is of other settings.
    """

    def __init__(
        self,
        directory: Path,
        config: PSROConfig,
        play: PlayNewest,
        show: Callable[[str], None],
        train: Train,
    ) -> None:
        self._directory, self._config, self._play, self._show, self._train = directory, config, play, show, train
        initial: dict[str, Any] = {"payoffs": [], "mixtures": []}
        self.state = open_state(directory / STATE, to_json(config), initial, "iterations")

    @property
    def payoffs(self) -> np.ndarray:
        """[P, P] mean return of policy i against j, antisymmetric."""
        return np.array(self.state["payoffs"], float)

    def run(self) -> int:
        """Trains all policies that are missing; returns 0, or the status of a run that was stopped."""
        while (number := len(self.state["payoffs"])) < self._config.iterations:
            if status := self._train([self._task(number)]):
                return status
            self._add(number)
        return 0

    def runs(self) -> list[Path]:
        """Returns the directories of the runs that the state counts."""
        return [self._run(number) for number in range(len(self.state["payoffs"]))]

    def _run(self, number: int) -> Path:
        return self._directory / f"policy{number:03d}"

    def _task(self, number: int) -> Task:
        """Returns the command that trains a policy: the first against itself, others against the newest mixture."""
        config, flags = self._config, [*self._config.flags]
        if number > 0:
            flags += opponent_flags(
                [self._run(member) for member in range(number)], self.state["mixtures"][-1], config.slots
            )
        return train_task(
            self._directory, self._run(number).name, config.experiment, config.env_steps, config.seed + number, flags
        )

    def _add(self, number: int) -> None:
        """Plays the games of a new policy, solves the game between policies, and replaces the state."""
        runs = [self._run(policy) for policy in range(number + 1)]
        returns = self._play(runs, self._config.games, self._config.seed) if number else []
        payoffs = np.zeros((number + 1, number + 1))
        payoffs[:number, :number] = self.payoffs.reshape(number, number)
        payoffs[number, :number] = returns
        payoffs[:number, number] = -np.asarray(returns)
        mixture = SOLVERS[self._config.solver]([payoffs, -payoffs])[0]
        mixture = np.where(mixture < _LEAST_WEIGHT * mixture.max(), 0.0, mixture)
        gain = float(payoffs[number, :number] @ self.state["mixtures"][-1]) if number else 0.0
        self.state = {
            **self.state,
            "payoffs": payoffs.tolist(),
            "mixtures": [*self.state["mixtures"], (mixture / mixture.sum()).tolist()],
        }
        write_json(self._directory / STATE, self.state)
        self._show(f"{runs[-1].name}: return {format_number(gain)} against the mixture it was trained against")
