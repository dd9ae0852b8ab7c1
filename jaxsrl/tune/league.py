"""A league of runs in a symmetric game of two sides: main agents, exploiters of them, exploiters of all; or fictitious co-play.

In each round every player trains one run, which starts from its run of the round before, and whose policy stays in the league.
The state is one file, replaced atomically when the runs of a round are complete and have played the others. The same call
continues after a kill, with the same result.
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
from jaxsrl.population.ratings import Results, fit_bradley_terry
from jaxsrl.tune.managed_runs import Train, open_state, opponent_flags, train_task, validate_games
from jaxsrl.tune.matchmaking import ONLY_ITSELF, Entry, Match, Role, choose_opponents, starts_again

STATE = "league.json"
_PRIOR_GAMES = 4.0  # half of them won


@dataclasses.dataclass(frozen=True)
class LeagueConfig:
    """Settings, which the directory keeps.

    Attributes:
        experiment: path of its file.
        rule: "league"; or "fcp", fictitious co-play: the main agents play only themselves, and in the last round one best response
            is trained from nothing against all their policies.
        rounds: number of rounds.
        env_steps: Env steps of each run; a best response gets those of all rounds before it.
        games: Games of each pair of policies, half from each side.
        main_agents: players that train against themselves, all others, and policies that beat them.
        main_exploiters: players that train against the newest main agents, from the second round.
        league_exploiters: players that train against all policies, from the second round.
        slots: opponents that act at the same time in a run.
        seed: Seed of games and choices; run n has seed + n.
        flags: Flags of the experiment.
    """

    experiment: str
    rule: Literal["league", "fcp"] = "league"
    rounds: int = 4
    env_steps: int = 100_000
    games: int = 100
    main_agents: int = 1
    main_exploiters: int = 1
    league_exploiters: int = 1
    slots: int = 4
    seed: int = 0
    flags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        counts = (self.rounds, self.env_steps, self.main_agents, self.slots)
        if min(counts) < 1 or min(self.main_exploiters, self.league_exploiters, self.seed) < 0:
            raise UserError(
                f"a league has at least one round, env step, main agent and slot; exploiters and seed are not negative: got "
                f"{', '.join(map(str, counts))}, {self.main_exploiters}, {self.league_exploiters}, {self.seed}"
            )
        validate_games(self.games)
        if self.rule not in ("league", "fcp") or (self.rule == "fcp" and self.rounds < 2):
            raise UserError(
                f"rule must be league, or fcp with at least two rounds: got {self.rule!r} with {self.rounds} rounds"
            )

    def players(self, number: int) -> list[tuple[str, Role]]:
        """Returns name and role of each player of a round."""
        roles: dict[Role, int] = {"main_agent": self.main_agents}
        if self.rule == "fcp":
            roles = roles if number < self.rounds - 1 else {"best_response": 1}
        elif number > 0:
            roles |= {"main_exploiter": self.main_exploiters, "league_exploiter": self.league_exploiters}
        return [(f"{role}{index}", role) for role, count in roles.items() for index in range(count)]


Play = Callable[[Sequence[Path], Sequence[tuple[int, int]], int, int], tuple[np.ndarray, np.ndarray]]
"""Maps runs, pairs of their numbers, games of each pair and seed to points per game and mean returns, [P, P] of i against j."""


class League:
    """Rounds of a league. One process at a time.

    Args:
        directory: Directory of the runs; made if need be.
        config: settings.
        play: plays the games.
        show: receives lines.
        train: runs the commands of a round.

    Raises:
        UserError: If the directory is of other settings.
    """

    def __init__(
        self,
        directory: Path,
        config: LeagueConfig,
        play: Play,
        show: Callable[[str], None],
        train: Train,
    ) -> None:
        self._directory, self._config, self._play, self._show, self._train = directory, config, play, show, train
        may_grow = "rounds" if config.rule == "league" else ""
        initial = {"rounds": 0, "policies": [], "points": [], "returns": [], "ratings": [], "errors": []}
        self.state = open_state(directory / STATE, to_json(config), initial, may_grow)

    def run(self) -> int:
        """Runs all rounds that are missing; returns 0, or the status of a round that was stopped."""
        while self.state["rounds"] < self._config.rounds:
            policies = self._next_policies()
            first = len(self.state["policies"])
            tasks = [self._task(first + index, policy) for index, policy in enumerate(policies)]
            if status := self._train(tasks):
                return status
            self._finish_round(policies)
        return 0

    @property
    def points(self) -> np.ndarray:
        """[P, P] points per game of policy i against j; one half where none were played."""
        return np.array(self.state["points"], float).reshape(2 * (len(self.state["policies"]),))

    def _next_policies(self) -> list[dict[str, Any]]:
        """Returns the policies that this round trains, which the state alone determines."""
        number, known = self.state["rounds"], self.state["policies"]
        entries = [Entry(policy["player"], policy["role"], policy["age"]) for policy in known]
        games = self._config.games
        win_rate = (self.points * games + 0.5 * _PRIOR_GAMES) / (games + _PRIOR_GAMES)
        newest = {policy["player"]: place for place, policy in enumerate(known)}
        random = np.random.default_rng((self._config.seed, number))
        policies: list[dict[str, Any]] = []
        for player, role in self._config.players(number):
            own = newest.get(player)
            if own is not None and starts_again(own, entries, win_rate, random):
                own = None
            plays_itself = number == 0 or (self._config.rule == "fcp" and role == "main_agent")
            match = ONLY_ITSELF if plays_itself else choose_opponents(role, own, entries, win_rate)
            policies.append(self._policy(number, player, role, own, match))
        return policies

    def _policy(self, number: int, player: str, role: Role, own: int | None, match: Match) -> dict[str, Any]:
        known = self.state["policies"]
        return {
            "name": f"round{number:03d}_{player}",
            "player": player,
            "role": role,
            "round": number,
            "age": 1 if own is None else known[own]["age"] + 1,
            "source": None if own is None else known[own]["name"],
            "self_share": match.self_share,
            "opponents": {known[place]["name"]: weight for place, weight in match.mixture.items()},
        }

    def _task(self, place: int, policy: dict[str, Any]) -> Task:
        config, flags = self._config, [*self._config.flags]
        if policy["opponents"]:
            members = [self._directory / name for name in policy["opponents"]]
            flags += opponent_flags(members, [*policy["opponents"].values()], config.slots, policy["self_share"])
        if policy["source"] is not None:
            flags += ["--run.init-from", str(self._directory / policy["source"]), "--run.init-optimizer"]
        rounds = policy["round"] if policy["role"] == "best_response" else 1
        steps = config.env_steps * rounds
        return train_task(self._directory, policy["name"], config.experiment, steps, config.seed + place, flags)

    def _finish_round(self, policies: list[dict[str, Any]]) -> None:
        """Plays the games of the new policies, and replaces the state."""
        before, known = len(self.state["policies"]), [*self.state["policies"], *policies]
        pairs = [(new, other) for new in range(before, len(known)) for other in range(new)]
        runs = [self._directory / policy["name"] for policy in known]
        points, returns = np.full((len(known), len(known)), 0.5), np.zeros((len(known), len(known)))
        points[:before, :before] = self.points
        returns[:before, :before] = np.array(self.state["returns"]).reshape(before, before)
        if pairs:
            new_points, new_returns = self._play(runs, pairs, self._config.games, self._config.seed)
            for new, other in pairs:
                for i, j in ((new, other), (other, new)):
                    points[i, j], returns[i, j] = new_points[i, j], new_returns[i, j]
        games = points * (1.0 - np.eye(len(known))) * self._config.games
        ratings = fit_bradley_terry(Results(games))
        self.state = {
            **self.state,
            "rounds": self.state["rounds"] + 1,
            "policies": known,
            "points": points.tolist(),
            "returns": returns.tolist(),
            "ratings": ratings.rating.tolist(),
            "errors": ratings.error.tolist(),
        }
        write_json(self._directory / STATE, self.state)
        for place, policy in enumerate(policies, before):
            others = np.delete(points[place], place)
            self._show(
                f"{policy['name']}: {others.mean() if others.size else 0.5:.2f} points per game against all others"
            )
