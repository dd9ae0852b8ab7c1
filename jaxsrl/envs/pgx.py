"""Adapter for pgx (github.com/sotetsuk/pgx): board games of two players and games of one player."""

import dataclasses
import json
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from agents.search.game import GameFn, GameStep
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import AgentSpec, ArraySpec, DiscreteSpec, EnvSpec
from jaxsrl.envs.optional_imports import import_package, validate_env_id
from jaxsrl.envs.protocol import Array, EnvState, JaxStep, Observation

PERFECT_INFORMATION = (
    "animal_shogi",
    "chess",
    "connect_four",
    "gardner_chess",
    "go_9x9",
    "go_19x19",
    "hex",
    "othello",
    "shogi",
    "tic_tac_toe",
)
"""Deterministic games of two players whose state both see."""
_TWO_AGENTS = '{"two_agents": true}'
_REBUILT = frozenset({"observation", "legal_action_mask", "rewards", "terminated", "truncated"})


@dataclasses.dataclass(frozen=True)
class PgxEnv:
    """`JaxEnv` of a pgx game, one row a game: the player to move sees the board and moves.

    The observation has the leaves "board", in the view of the player to move, and "action_mask". The reward is that of the player
    who moved. An illegal move loses.

    Attributes:
        env_id: pgx's id ("connect_four").
        kwargs: JSON object; "with_state": true adds the leaf "state", the game's state, which only a search may read.
    """

    env_id: str
    kwargs: str = "{}"

    def spec(self) -> EnvSpec:
        return _load(self.env_id, self.kwargs).spec

    def reset(self, key: Array) -> tuple[EnvState, Observation]:
        loaded = _load(self.env_id, self.kwargs)
        state = loaded.env.init(key)
        return state, _observe(loaded, state)

    def step(self, state: EnvState, action: Array, key: Array) -> JaxStep:
        loaded = _load(self.env_id, self.kwargs)
        after = loaded.env.step(state, action, key)
        reward = jnp.asarray(after.rewards[state.current_player], jnp.float32)
        return JaxStep(after, _observe(loaded, after), reward, after.terminated, after.truncated)


@dataclasses.dataclass(frozen=True)
class PgxTeams:
    """`JaxEnv` of a pgx game of two players, who are agents "first" and "second" in the order of their first moves.

    Both act at every step. The one not to move has one legal action, 0, which is ignored. An agent observes the leaves
    "action_mask", "board", in its own view, and "seat": 0 for the first, 1 for the second. An illegal move loses.

    Attributes:
        env_id: pgx's id ("kuhn_poker").
    """

    env_id: str

    def spec(self) -> EnvSpec:
        return _load(self.env_id, _TWO_AGENTS).spec

    def reset(self, key: Array) -> tuple[EnvState, Observation]:
        loaded = _load(self.env_id, _TWO_AGENTS)
        game = loaded.env.init(key)
        state = {"first": game.current_player, "game": game}
        return state, _observe_both(loaded, state)

    def step(self, state: EnvState, action: Array, key: Array) -> JaxStep:
        loaded, before, first = _load(self.env_id, _TWO_AGENTS), state["game"], state["first"]
        after = loaded.env.step(before, action[(before.current_player - first) % 2], key)
        reward = jnp.asarray(after.rewards, jnp.float32)[_seats(first)]
        state = {"first": first, "game": after}
        return JaxStep(state, _observe_both(loaded, state), reward, after.terminated, after.truncated)


def make_pgx(env_id: str, arguments: dict[str, Any]) -> PgxEnv | PgxTeams:
    """Makes the environment.

    Raises:
        UserError: pgx is missing, the id is unknown, or an argument is invalid.
    """
    kwargs = json.dumps(arguments, sort_keys=True)
    env = PgxTeams(env_id) if kwargs == _TWO_AGENTS else PgxEnv(env_id, kwargs)
    env.spec()
    return env


def pgx_rules(env_id: str) -> GameFn:
    """Returns the rules of a game whose rows have the leaf "state".

    Raises:
        UserError: pgx is missing, or the game is not one of two players with perfect information.
    """
    if env_id not in PERFECT_INFORMATION:
        raise UserError(
            f"{env_id!r} of suite 'pgx': a search needs a deterministic game of two players whose state both see: expected one of "
            f"{', '.join(PERFECT_INFORMATION)}"
        )
    loaded = _load(env_id, json.dumps({"with_state": True}))

    def play(observation: Observation, move: Array) -> GameStep:
        state = loaded.template.replace(
            **jax.tree.unflatten(loaded.structure, list(observation["state"].values())),
            legal_action_mask=observation["action_mask"] != 0,
        )
        after = loaded.env.step(state, move)
        reward = jnp.asarray(after.rewards[state.current_player], jnp.float32)
        return GameStep(_observe(loaded, after), reward, after.terminated)

    return play


class _LoadedGame(NamedTuple):
    """pgx's game, the spec of a row, a first state, and the structure of the parts that the leaf "state" has."""

    env: Any
    spec: EnvSpec
    template: Any
    structure: Any


@lru_cache(maxsize=32)
def _load(env_id: str, kwargs: str) -> _LoadedGame:
    pgx = import_package("pgx", "pgx")
    validate_env_id(env_id, "pgx", pgx.available_envs())
    arguments = json.loads(kwargs)
    allowed = [{}, *({name: value} for name in ("two_agents", "with_state") for value in (False, True))]
    if arguments not in allowed:
        raise UserError(
            f"{env_id} of suite 'pgx': bad kwargs {kwargs}: expected one of two_agents and with_state, true or false"
        )
    with jax.ensure_compile_time_eval():  # games create arrays, possibly inside a trace
        env = pgx.make(env_id)
        # A state may hold Python numbers, which become arrays of JAX's types in a trace.
        template = jax.tree.map(lambda leaf: np.asarray(jnp.asarray(leaf)), env.init(jax.random.key(0)))
    if arguments.get("two_agents") and env.num_players != 2:
        raise UserError(
            f"{env_id} of suite 'pgx': two_agents needs a game of two players: this one has {env.num_players}"
        )
    parts = _parts(template)
    observation: dict[str, Any] = {
        "action_mask": ArraySpec(template.legal_action_mask.shape, "bool", 0, 1),
        "board": _array_spec(template.observation),
    }
    if arguments.get("with_state"):
        leaves = jax.tree.leaves(parts)
        observation["state"] = {_name(number): _array_spec(leaf) for number, leaf in enumerate(leaves)}
    move = DiscreteSpec(int(env.num_actions))
    agents: tuple[AgentSpec, ...] = ()
    if arguments.get("two_agents"):
        observation["seat"] = ArraySpec((1,), "float32", 0.0, 1.0)
        agents = tuple(AgentSpec(name, observation, move, ("action_mask",)) for name in ("first", "second"))
    players = 1 if agents else env.num_players
    spec = EnvSpec(env_id, observation, move, action_mask=("action_mask",), agents=agents, players=players)
    return _LoadedGame(env, spec, template, jax.tree.structure(parts))


def _observe(loaded: _LoadedGame, state: EnvState) -> Observation:
    observation = {"action_mask": state.legal_action_mask, "board": state.observation}
    if "state" in loaded.spec.observation:
        leaves = jax.tree.leaves(_parts(state))
        observation["state"] = {_name(number): leaf for number, leaf in enumerate(leaves)}
    return observation


def _seats(first: Array) -> Array:
    """Returns pgx's numbers of the first and the second agent, [2] int32."""
    return jnp.stack([first, 1 - first])


def _observe_both(loaded: _LoadedGame, state: EnvState) -> Observation:
    game, players = state["game"], _seats(state["first"])
    waits = jnp.arange(game.legal_action_mask.shape[0]) == 0
    observe = loaded.env._observe  # `observe` with a player is deprecated, and without one shows the mover's view alone
    return {
        "action_mask": jnp.where((players == game.current_player)[:, None], game.legal_action_mask, waits),
        "board": jax.vmap(observe, in_axes=(None, 0))(game, players),
        "seat": jnp.asarray([[0.0], [1.0]], jnp.float32),
    }


def _parts(state: EnvState) -> dict[str, Any]:
    """Returns the parts of a state that do not follow from the others or from the observation."""
    fields = {field.name for field in dataclasses.fields(state)}
    return {name: getattr(state, name) for name in sorted(fields - _REBUILT)}


def _name(number: int) -> str:
    return f"{number:02d}"


def _array_spec(leaf: Any) -> ArraySpec:
    return ArraySpec(leaf.shape, leaf.dtype.name)
