"""Games between all pairs of policies: their payoffs and ratings."""

import dataclasses
import itertools
import json
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agents.api import AnyAgent, Mode
from agents.transforms.multi_policy import PolicyGroup, make_grouped, policy_spec, split_teams
from agents.transforms.some_agents import act_for_some
from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.envs.function_source import AnyEnv
from envpool_bridge.envs.protocol import EnvSource
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import EnvSpec
from jaxsrl.collect.inference.act import ActOnRows
from jaxsrl.evaluation.evaluate import EpisodeOptions, evaluate, make_evaluation_act
from jaxsrl.evaluation.games import RANDOM, Player, game_of, loaded_player, play_games
from jaxsrl.evaluation.load_agent import LoadedAgent, load_agent
from jaxsrl.evaluation.record import with_random_actions
from jaxsrl.population.meta_game import nash_average
from jaxsrl.population.policies import saved_policies
from jaxsrl.population.ratings import Results, fit_bradley_terry

MAX_ROWS = 256
"""Rows in parallel: the time of a call of a policy hardly depends on them until there are many."""


@dataclasses.dataclass(frozen=True)
class Contestant:
    """A policy that plays for either side.

    Attributes:
        name: Name of the run, with its tag.
        loaded: agent, parameters and environments; None for random moves.
    """

    name: str
    loaded: LoadedAgent | None


@dataclasses.dataclass(frozen=True)
class ArenaConfig:
    """Games of each pair.

    Attributes:
        games: Games of each pair, half of them from each side.
        seed: Seed of environments and actions; both halves of a pair have the same.
        mode: how policies choose.
        first_side: pattern of the names of the agents of the first side; "" for the first team of the first run's self-play.
    """

    games: int = 100
    seed: int = 0
    mode: Mode = Mode.GREEDY
    first_side: str = ""

    def __post_init__(self) -> None:
        if self.games < 2 or self.games % 2:
            raise UserError(
                f"half of the games of a pair are from each side: expected an even number, got {self.games}"
            )


@dataclasses.dataclass(frozen=True)
class Payoffs:
    """Results of all pairs of P policies.

    Attributes:
        names: Names of the policies.
        wins: [P, P] number of games that i won against j.
        draws: [P, P] number of games without a winner, symmetric.
        returns: [P, P] mean return of i against j, environment reward units.
    """

    names: tuple[str, ...]
    wins: np.ndarray
    draws: np.ndarray
    returns: np.ndarray

    @property
    def points(self) -> np.ndarray:
        """[P, P] points of i against j: a win is 1, a draw one half."""
        return self.wins + 0.5 * self.draws

    @property
    def share(self) -> np.ndarray:
        """[P, P] points per game; NaN on the diagonal, where there are no games."""
        games = self.points + self.points.T
        return np.divide(self.points, games, out=np.full(games.shape, np.nan), where=games > 0)

    def to_json(self) -> dict[str, Any]:
        """Returns names, payoffs, and the ratings of `rate` as JSON data."""
        arrays = {name: getattr(self, name).tolist() for name in ("wins", "draws", "returns")}
        return {"names": list(self.names), **arrays, "ratings": rate(self)}


def rate(payoffs: Payoffs) -> list[dict[str, Any]]:
    """Returns the policies, best first: Bradley-Terry rating, its standard error, points per game, weight in the Nash average."""
    points = payoffs.points
    games, advantage = points + points.T, np.nan_to_num(payoffs.share - 0.5)
    ratings, (mixture, _) = fit_bradley_terry(Results(points)), nash_average(advantage)
    rows = [
        {
            "policy": name,
            "rating": float(ratings.rating[number]),
            "standard_error": float(ratings.error[number]),
            "points_per_game": float(points[number].sum() / max(games[number].sum(), 1)),
            "nash_weight": float(mixture[number]),
        }
        for number, name in enumerate(payoffs.names)
    ]
    return sorted(rows, key=lambda row: -row["rating"])


def load_contestants(
    paths: Sequence[str], trust_env: bool = False, env: EnvConfig | AnyEnv | None = None
) -> list[Contestant]:
    """Loads the policies of runs, "RUN@TAG", checkpoints, or "random".

    Args:
        paths: Paths of the policies.
        trust_env: Trust env, as in `load_agent`.
        env: Environment of all runs, as in `load_agent`.

    Raises:
        UserError: If there are fewer than two, two have one name, or they are of different environments.
    """
    if len(paths) < 2 or len(set(paths)) < len(paths):
        raise UserError(f"an arena has at least two policies, each once: got {', '.join(paths) or 'none'}")
    contestants = [
        Contestant(path, None if path == "random" else load_agent(Path(path), env=env, trust_env=trust_env))
        for path in paths
    ]
    specs = {each.name: each.loaded.source.spec() for each in contestants if each.loaded is not None}
    if not specs:
        raise UserError("an arena needs a run, whose environment is played: got only random moves")
    (first, spec), *others = specs.items()
    for name, own in others:
        if (own.env_id, own.action) != (spec.env_id, spec.action):
            raise UserError(f"{name}: expected a run of {spec.env_id}, got {own.env_id}")
        # The player to move in a board game may see more than its opponent, for example the state for a search.
        if own.agents != spec.agents or (spec.agents and own.observation != spec.observation):
            raise UserError(
                f"{name}: expected the agents and observations of {first}: train both runs with the same "
                f"environment settings (--env.kwargs)"
            )
    return contestants


def play_arena(
    contestants: Sequence[Contestant],
    config: ArenaConfig,
    show: Callable[[str], None],
    pairs: Sequence[tuple[int, int]] | None = None,
) -> Payoffs:
    """Plays the games of all pairs.

    Args:
        contestants: Contestants from `load_contestants`.
        config: Configuration of the games.
        show: receives a line for each pair.
        pairs: numbers of the contestants of each pair that plays; None for all. Others have no games.

    Raises:
        UserError: If the environment has no two sides, or a policy of a board game has a memory.
    """
    first = next(each.loaded for each in contestants if each.loaded is not None)
    match = _match_of_agents if first.source.spec().agents else _board_game
    play_pair = match(contestants, first, config)
    count = len(contestants)
    wins, draws, returns = (np.zeros((count, count)) for _ in range(3))
    for one, other in itertools.combinations(range(count), 2) if pairs is None else pairs:
        pair = play_pair(one, other)
        wins[one, other], wins[other, one] = pair.wins, pair.losses
        draws[one, other] = draws[other, one] = config.games - pair.wins - pair.losses
        returns[one, other], returns[other, one] = pair.mean_return, pair.opponent_return
        names = f"{contestants[one].name} - {contestants[other].name}"
        cut = f" ({pair.num_cut} games cut)" if pair.num_cut else ""
        show(f"{names}: {pair.wins} won, {config.games - pair.wins - pair.losses} drawn, {pair.losses} lost{cut}")
    return Payoffs(tuple(each.name for each in contestants), wins, draws, returns)


@dataclasses.dataclass(frozen=True)
class _Pair:
    """Games of a pair, as the first of both sees them."""

    wins: int
    losses: int
    mean_return: float
    opponent_return: float
    num_cut: int = 0  # games that have not ended within the limit of steps


def _board_game(
    contestants: Sequence[Contestant], first: LoadedAgent, config: ArenaConfig
) -> Callable[[int, int], _Pair]:
    """Returns the match of two players of a board game, where the player to move is the only row."""
    if config.first_side:
        raise UserError(f"--first-side {config.first_side!r} names agents, of which a board game has none: omit it")
    env, play = game_of(first.source)
    choices: dict[str, Player] = {}
    players: list[Player] = []
    for each in contestants:
        if each.loaded is None:
            players.append(RANDOM)
            continue
        own = loaded_player(each.loaded, config.mode)
        # Policies of one configuration share a compiled program.
        players.append(Player(choices.setdefault(_configuration(each.loaded), own).choose, own.params))

    def match(one: int, other: int) -> _Pair:
        seats = play_games(env, play, players[one], players[other], config.games, config.seed)
        wins, losses = sum(seat.wins for seat in seats), sum(seat.losses for seat in seats)
        mean = (wins - losses) / config.games
        return _Pair(wins, losses, mean, -mean)

    return match


def _match_of_agents(
    contestants: Sequence[Contestant], first_run: LoadedAgent, config: ArenaConfig
) -> Callable[[int, int], _Pair]:
    """Returns the match of two policies in an environment of several agents, which they play for in turn."""
    source, spec = first_run.source, first_run.source.spec()
    loaded = [each.loaded or first_run for each in contestants]
    agents = _shared_agents(loaded)
    for number, each in enumerate(contestants):
        if each.loaded is None:
            plain = agents[number]
            agents[number] = plain._replace(act=with_random_actions(plain.act, spec, 1.0))
    team = saved_policies(first_run.metadata).self_play.team
    sides = split_teams(spec, config.first_side or team, "--first-side")
    programs: dict[tuple[int, int], tuple[AnyAgent, ActOnRows]] = {}

    def play(first: int, second: int) -> tuple[list[tuple[float, float]], int]:
        """Returns the mean returns of both sides in each game, and the number of games that were cut."""
        key = (id(agents[first]), id(agents[second]))
        if key not in programs:
            players = [
                _for_team(agents[number], spec, side) if loaded[number].acts_for_teams else agents[number]
                for number, side in zip((first, second), sides, strict=True)
            ]
            grouped = _grouped(spec, sides, players)
            programs[key] = grouped, make_evaluation_act(grouped, source, config.mode)
        grouped, act = programs[key]
        params = {"first": loaded[first].params, "second": loaded[second].params}
        return _returns_of_sides(grouped, params, source, sides, config, act)

    def match(one: int, other: int) -> _Pair:
        (games, num_cut), (others, num_others_cut) = play(one, other), play(other, one)
        own, theirs = np.array(games + [(own, theirs) for theirs, own in others]).T
        wins, losses = int((own > theirs).sum()), int((own < theirs).sum())
        return _Pair(wins, losses, float(own.mean()), float(theirs.mean()), num_cut + num_others_cut)

    return match


def _grouped(spec: EnvSpec, sides: tuple[tuple[int, ...], ...], players: Sequence[AnyAgent]) -> AnyAgent:
    # A policy of all agents acts for padded observations, also where those of its side are smaller.
    rows, pairs = policy_spec(spec, range(spec.rows_per_env)), zip(("first", "second"), sides, players, strict=True)
    return make_grouped(spec, [PolicyGroup(name, side, rows, player, frozen=True) for name, side, player in pairs])


def _for_team(agent: AnyAgent, spec: EnvSpec, side: tuple[int, ...]) -> AnyAgent:
    # A group's state has the rows of all agents, from which its own are selected.
    return act_for_some(agent, spec, side)._replace(initial_agent_state=agent.initial_agent_state)


def _returns_of_sides(
    agent: AnyAgent,
    params: Any,
    source: EnvSource,
    sides: tuple[tuple[int, ...], ...],
    config: ArenaConfig,
    act: ActOnRows,
) -> tuple[list[tuple[float, float]], int]:
    spec = source.spec()
    report = evaluate(
        agent,
        params,
        source,
        episodes=config.games // 2,
        seed=config.seed,
        mode=config.mode,
        max_rows=MAX_ROWS,
        options=EpisodeOptions(act=act),
    )
    means: list[list[float]] = []
    for side in sides:
        names = [spec.agents[number].name for number in side]
        values = [report.returns_by_agent[name] for name in names if name in report.returns_by_agent]
        # Absent agents do not count. Rounded once: rounded sums of equal sides may differ, and a draw would be a win.
        games = [[value for value in game if not math.isnan(value)] for game in zip(*values, strict=True)]
        means.append([statistics.mean(game or [0.0]) for game in games] or [0.0] * len(report.returns))
    return list(zip(*means, strict=True)), report.cut_episodes


def _shared_agents(loaded: Sequence[LoadedAgent]) -> list[AnyAgent]:
    """Returns the agents, one for all policies of one configuration, which then share compiled programs."""
    agents: dict[str, AnyAgent] = {}
    return [agents.setdefault(_configuration(each), each.agent) for each in loaded]


def _configuration(loaded: LoadedAgent) -> str:
    """Returns all that makes an agent's functions, as text."""
    metadata = loaded.metadata
    experiment = metadata.get("experiment", {})
    policies = experiment.get("policies", {})
    own = [policies.get(name) for name in ("mapping", "agents", "networks")]
    parts = [
        metadata.get("algorithm"),
        *(experiment.get(part) for part in ("agent", "network", "env", "imitation")),
        *own,
    ]
    return json.dumps(parts, sort_keys=True)
