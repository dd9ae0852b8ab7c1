"""Games of an agent against an opponent, from both seats."""

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from agents.api import AnyAgent, Array, Mode, Observation, Params
from agents.search.game import GameFn
from agents.search.model import ILLEGAL, ModelStep, Root
from agents.search.uct import UCTConfig, uct_search
from envpool_bridge.errors import UserError
from jaxsrl.envs.cpu_rows import JaxSource
from jaxsrl.envs.pgx import PgxEnv, pgx_rules
from jaxsrl.envs.protocol import JaxEnv
from jaxsrl.evaluation.load_agent import LoadedAgent, load_agent

Player = Callable[[Observation, Array], Array]
"""Maps (observations [N, ...], typed keys [N]) to moves [N] int32."""
_MASK = "action_mask"


@dataclasses.dataclass(frozen=True)
class SeatResult:
    """Games of the agent in one seat.

    Attributes:
        seat: "first" where the agent moves first, otherwise "second".
        games: number of games.
        wins: of the agent.
        draws: games without a winner.
        losses: of the agent.
    """

    seat: str
    games: int
    wins: int
    draws: int
    losses: int


def play_games(env: JaxEnv, play: GameFn, agent: Player, opponent: Player, games: int, seed: int) -> list[SeatResult]:
    """Plays games of one agent against another, half of them in each seat, all of a seat at once.

    Args:
        env: the game, which makes first positions.
        play: its rules.
        agent: whose wins count.
        opponent: the other player.
        games: number of games, at least 2.
        seed: of positions and players.

    Raises:
        UserError: there are fewer games than seats.
    """
    if games < 2:
        raise UserError(f"games are played in both seats: expected at least 2, got {games}")
    numbers = {"first": games - games // 2, "second": games // 2}
    keys = jax.random.split(jax.random.key(seed), 2)
    return [
        _play_seat(env, play, (agent, opponent), seat, number, key)
        for (seat, number), key in zip(numbers.items(), keys, strict=True)
    ]


def _play_seat(
    env: JaxEnv, play: GameFn, players: tuple[Player, Player], seat: str, games: int, key: Array
) -> SeatResult:
    start_key, key = jax.random.split(key)
    _, observation = jax.vmap(env.reset)(jax.random.split(start_key, games))
    table = _Table(observation, jnp.zeros(games), jnp.zeros(games, bool))
    move = [jax.jit(partial(_move, play, player)) for player in players]
    turn = 0 if seat == "first" else 1
    while not bool(table.ended.all()):
        key, move_key = jax.random.split(key)
        sign = 1.0 if turn == 0 else -1.0
        table = move[turn](table, jax.random.split(move_key, games), sign)
        turn = 1 - turn
    wins, losses = int((table.score > 0).sum()), int((table.score < 0).sum())
    return SeatResult(seat, games, wins, games - wins - losses, losses)


class _Table(NamedTuple):
    """Games at the same number of moves: positions, the agent's score, and whether they have ended."""

    observation: Any
    score: Array
    ended: Array


def _move(play: GameFn, player: Player, table: _Table, keys: Array, sign: Array) -> _Table:
    after = jax.vmap(play)(table.observation, player(table.observation, keys))

    def keep(old: Array, new: Array) -> Array:
        return jnp.where(table.ended.reshape(-1, *[1] * (new.ndim - 1)), old, new)

    observation = jax.tree.map(keep, table.observation, after.observation)
    score = jnp.where(table.ended, table.score, table.score + sign * after.reward)
    return _Table(observation, score, table.ended | after.ended)


def agent_player(agent: AnyAgent, params: Params, mode: Mode = Mode.GREEDY) -> Player:
    """Returns the player whose moves are an agent's actions."""

    def choose(observation: Observation, keys: Array) -> Array:
        first = jnp.zeros(keys.shape, bool)
        return agent.act(params, observation, agent.initial_agent_state(keys.shape[0]), first, keys, mode)[0]

    return choose


def random_player(observation: Observation, keys: Array) -> Array:
    """Returns legal moves that are equally likely."""
    return jax.vmap(jax.random.categorical)(keys, _uniform(observation)).astype(jnp.int32)


def uct_player(play: GameFn, simulations: int) -> Player:
    """Returns the player that searches by UCT with random rollouts (`agents.search.uct`)."""

    def step(params: Params, latent: Observation, action: Array, key: Array) -> ModelStep:
        del params, key
        after = jax.vmap(play)(latent, action)
        discount = jnp.where(after.ended, 0.0, -1.0)
        return ModelStep(
            after.reward, discount, _uniform(after.observation), jnp.zeros(action.shape), after.observation
        )

    def choose(observation: Observation, keys: Array) -> Array:
        root = Root(_uniform(observation), jnp.zeros(keys.shape), observation)
        return uct_search(step, None, root, keys, UCTConfig(simulations)).action

    return choose


def make_opponent(name: str, play: GameFn, load: Callable[[str], Player]) -> Player:
    """Returns the player of a name: "random", "uct:SIMULATIONS", or a run or checkpoint, which `load` loads.

    Raises:
        UserError: the number of simulations is none.
    """
    if name == "random":
        return random_player
    kind, _, number = name.partition(":")
    if kind != "uct":
        return load(name)
    if not number.isdigit() or int(number) < 1:
        raise UserError(f"opponent {name!r}: expected uct:SIMULATIONS with a positive number, for example uct:200")
    return uct_player(play, int(number))


def _uniform(observation: Observation) -> Array:
    return jnp.where(observation[_MASK] != 0, 0.0, ILLEGAL)


def evaluate_against(
    loaded: LoadedAgent, opponent: str, games: int, seed: int, mode: Mode = Mode.GREEDY
) -> list[SeatResult]:
    """Plays games of a loaded agent against "random", "uct:SIMULATIONS", or the run or checkpoint at a path.

    Raises:
        UserError: the environment is no game of suite "pgx" with the leaf "state", or the opponent plays another game.
    """
    env = loaded.source.make_jax_env() if isinstance(loaded.source, JaxSource) else None
    if not isinstance(env, PgxEnv):
        raise UserError("opponents are for games of suite 'pgx': got another environment")
    play = pgx_rules(env.env_id)

    def load(path: str) -> Player:
        other = load_agent(Path(path))
        if other.source.spec() != loaded.source.spec():
            raise UserError(f"opponent {path}: expected a run of {env.env_id}, got {other.source.spec().env_id}")
        return agent_player(other.agent, other.params, mode)

    player = agent_player(loaded.agent, loaded.params, mode)
    return play_games(env, play, player, make_opponent(opponent, play, load), games, seed)
