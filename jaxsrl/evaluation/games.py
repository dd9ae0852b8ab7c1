"""Games of an agent against an opponent, from both seats."""

import dataclasses
import json
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from agents.api import AnyAgent, Array, Mode, Observation, Params
from agents.search.game import GameFn
from agents.search.model import ILLEGAL, ModelStep, Root
from agents.search.uct import UCTConfig, uct_search
from envpool_bridge.envs.protocol import EnvSource
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import zeros_of
from jaxsrl.envs.cpu_rows import JaxSource
from jaxsrl.envs.pgx import PgxEnv, pgx_rules
from jaxsrl.envs.protocol import JaxEnv
from jaxsrl.evaluation.load_agent import LoadedAgent, load_agent
from jaxsrl.evaluation.player import RowsPlayer

_MASK = "action_mask"


class Player(NamedTuple):
    """A player of any number of games at once. Players with the same function share its compiled program.

    Attributes:
        choose: Maps (params, observations [N, ...], typed keys [N]) to moves [N] int32.
        params: parameters; () for a player without any.
    """

    choose: Callable[[Params, Observation, Array], Array]
    params: Params = ()


@dataclasses.dataclass(frozen=True)
class SeatResult:
    """Games of the agent in one seat.

    Attributes:
        seat: "first" where the agent moves first, otherwise "second".
        games: number of games.
        wins: Wins of the agent.
        draws: games without a winner.
        losses: Losses of the agent.
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
        play: Rules of the game.
        agent: Agent whose wins count.
        opponent: the other player.
        games: number of games, at least 2.
        seed: Seed of positions and players.

    Raises:
        UserError: If there are fewer games than seats.
    """
    if games < 2:
        raise UserError(f"games are played in both seats: expected at least 2, got {games}")
    # The same key: games of both seats are pairs with the same first position.
    numbers, key = {"first": games - games // 2, "second": games // 2}, jax.random.key(seed)
    return [_play_seat(env, play, (agent, opponent), seat, number, key) for seat, number in numbers.items()]


def _play_seat(
    env: JaxEnv, play: GameFn, players: tuple[Player, Player], seat: str, games: int, key: Array
) -> SeatResult:
    start_key, key = jax.random.split(key)
    _, observation = jax.vmap(env.reset)(jax.random.split(start_key, games))
    table = _Table(observation, jnp.zeros(games), jnp.zeros(games, bool))
    turn = 0 if seat == "first" else 1
    while not bool(table.ended.all()):
        key, move_key = jax.random.split(key)
        sign = 1.0 if turn == 0 else -1.0
        move_keys = jax.random.split(move_key, games)
        table = _jitted_move(play, players[turn].choose)(players[turn].params, table, move_keys, sign)
        turn = 1 - turn
        RowsPlayer.steps_of_process += 1
    wins, losses = int((table.score > 0).sum()), int((table.score < 0).sum())
    return SeatResult(seat, games, wins, games - wins - losses, losses)


class _Table(NamedTuple):
    """Games at the same number of moves: positions, the agent's score, and whether they have ended."""

    observation: Any
    score: Array
    ended: Array


@lru_cache(maxsize=64)
def _jitted_move(play: GameFn, choose: Callable[..., Array]) -> Callable[..., _Table]:
    return jax.jit(partial(_move, play, choose))


def _move(
    play: GameFn, choose: Callable[..., Array], params: Params, table: _Table, keys: Array, sign: Array
) -> _Table:
    after = jax.vmap(play)(table.observation, choose(params, table.observation, keys))

    def keep(old: Array, new: Array) -> Array:
        return jnp.where(table.ended.reshape(-1, *[1] * (new.ndim - 1)), old, new)

    observation = jax.tree.map(keep, table.observation, after.observation)
    score = jnp.where(table.ended, table.score, table.score + sign * after.reward)
    return _Table(observation, score, table.ended | after.ended)


def agent_moves(agent: AnyAgent, leaves: tuple[str, ...] = (), mode: Mode = Mode.GREEDY) -> Callable[..., Array]:
    """Returns the `choose` of players whose moves are an agent's actions.

    Args:
        agent: acts without a memory of earlier moves.
        leaves: names of the leaves that it observes; all if empty.
        mode: how it chooses.
    """

    def choose(params: Params, observation: Observation, keys: Array) -> Array:
        seen = {name: observation[name] for name in leaves} if leaves else observation
        first = jnp.zeros(keys.shape, bool)
        return agent.act(params, seen, agent.initial_agent_state(keys.shape[0]), first, keys, mode)[0]

    return choose


def _random_move(params: Params, observation: Observation, keys: Array) -> Array:
    del params
    return jax.vmap(jax.random.categorical)(keys, _uniform(observation)).astype(jnp.int32)


RANDOM = Player(_random_move)
"""Player whose legal moves are equally likely."""


def uct_player(play: GameFn, simulations: int) -> Player:
    """Returns the player that searches by UCT with random rollouts (`agents.search.uct`)."""

    def step(params: Params, latent: Observation, action: Array, key: Array) -> ModelStep:
        del params, key
        after = jax.vmap(play)(latent, action)
        discount = jnp.where(after.ended, 0.0, -1.0)
        return ModelStep(
            after.reward, discount, _uniform(after.observation), jnp.zeros(action.shape), after.observation
        )

    def choose(params: Params, observation: Observation, keys: Array) -> Array:
        del params
        root = Root(_uniform(observation), jnp.zeros(keys.shape), observation)
        return uct_search(step, None, root, keys, UCTConfig(simulations)).action

    return Player(choose)


def make_opponent(name: str, play: GameFn, load: Callable[[str], Player]) -> Player:
    """Returns the player of a name: "random", "uct:SIMULATIONS", or a run or checkpoint, which `load` loads.

    Raises:
        UserError: If the number of simulations is none.
    """
    if name == "random":
        return RANDOM
    kind, _, number = name.partition(":")
    if kind != "uct":
        return load(name)
    if not number.isdecimal() or int(number) < 1:
        raise UserError(f"opponent {name!r}: expected uct:SIMULATIONS with a positive number, for example uct:200")
    return uct_player(play, int(number))


def _uniform(observation: Observation) -> Array:
    return jnp.where(observation[_MASK] != 0, 0.0, ILLEGAL)


def game_of(source: EnvSource) -> tuple[PgxEnv, GameFn]:
    """Returns the game of a run's environments, with the leaf "state" that its rules need, and the rules.

    Raises:
        UserError: If the environment is no game of suite "pgx" of two players with perfect information.
    """
    env = source.make_jax_env() if isinstance(source, JaxSource) else None
    if not isinstance(env, PgxEnv):
        spec = source.spec()
        arena = "; `jaxsrl arena` plays environments of several agents" if spec.agents else ""
        raise UserError(
            f"opponents need an environment of several agents, or a game of suite 'pgx' in which one agent moves for both "
            f"players: got environment {spec.env_id}{arena}"
        )
    return PgxEnv(env.env_id, json.dumps({"with_state": True})), pgx_rules(env.env_id)


def loaded_player(loaded: LoadedAgent, mode: Mode = Mode.GREEDY) -> Player:
    """Returns the player of a loaded agent.

    Raises:
        UserError: If the agent has a memory, which `agent_moves` would clear at every move.
    """
    leaves: Any = loaded.source.spec().observation
    if _has_memory(loaded, mode):
        raise UserError(
            f"{loaded.checkpoint}: the policy has a memory of earlier moves: expected one that moves by the position alone"
        )
    return Player(agent_moves(loaded.agent, tuple(leaves), mode), loaded.params)


def _has_memory(loaded: LoadedAgent, mode: Mode) -> bool:
    """Returns whether acting changes the agent's state."""
    agent, changes = loaded.agent, [False]
    state = agent.initial_agent_state(1)
    if not jax.tree.leaves(state):
        return False

    def act(params: Params, observation: Observation, state: Any, first: Array, keys: Array) -> Any:
        after = agent.act(params, observation, state, first, keys, mode)[2]
        pairs = zip(jax.tree.leaves(state), jax.tree.leaves(after), strict=True)
        changes.append(any(one is not other for one, other in pairs))
        return after

    observation, keys = zeros_of(loaded.source.spec().observation, (1,)), jax.random.split(jax.random.key(0), 1)
    jax.eval_shape(act, loaded.params, observation, state, jnp.zeros(1, bool), keys)
    return any(changes)


def evaluate_against(
    loaded: LoadedAgent, opponent: str, games: int, seed: int, mode: Mode = Mode.GREEDY
) -> list[SeatResult]:
    """Plays games of a loaded agent against "random", "uct:SIMULATIONS", or the run or checkpoint at a path.

    Raises:
        UserError: If the environment is no game of suite "pgx", the opponent plays another game, or a policy has a memory.
    """
    env, play = game_of(loaded.source)

    def load(path: str) -> Player:
        other = load_agent(Path(path))
        if game_of(other.source)[0] != env:
            raise UserError(f"opponent {path}: expected a run of {env.env_id}, got {other.source.spec().env_id}")
        return loaded_player(other, mode)

    return play_games(env, play, loaded_player(loaded, mode), make_opponent(opponent, play, load), games, seed)
