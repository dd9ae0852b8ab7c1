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
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec
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


def make_pgx(env_id: str, arguments: dict[str, Any]) -> PgxEnv:
    """Makes the environment.

    Raises:
        UserError: pgx is missing, the id is unknown, or an argument is invalid.
    """
    env = PgxEnv(env_id, json.dumps(arguments, sort_keys=True))
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
    if set(arguments) - {"with_state"} or not isinstance(arguments.get("with_state", False), bool):
        raise UserError(f"{env_id} of suite 'pgx': bad kwargs {kwargs}: expected with_state, true or false")
    with jax.ensure_compile_time_eval():  # games create arrays, possibly inside a trace
        env = pgx.make(env_id)
        template = jax.tree.map(np.asarray, env.init(jax.random.key(0)))
    parts = _parts(template)
    observation: dict[str, Any] = {
        "action_mask": ArraySpec(template.legal_action_mask.shape, "bool", 0, 1),
        "board": _array_spec(template.observation),
    }
    if arguments.get("with_state"):
        leaves = jax.tree.leaves(parts)
        observation["state"] = {_name(number): _array_spec(leaf) for number, leaf in enumerate(leaves)}
    spec = EnvSpec(env_id, observation, DiscreteSpec(int(env.num_actions)), action_mask=("action_mask",))
    return _LoadedGame(env, spec, template, jax.tree.structure(parts))


def _observe(loaded: _LoadedGame, state: EnvState) -> Observation:
    observation = {"action_mask": state.legal_action_mask, "board": state.observation}
    if "state" in loaded.spec.observation:
        leaves = jax.tree.leaves(_parts(state))
        observation["state"] = {_name(number): leaf for number, leaf in enumerate(leaves)}
    return observation


def _parts(state: EnvState) -> dict[str, Any]:
    """Returns the parts of a state that do not follow from the others or from the observation."""
    fields = {field.name for field in dataclasses.fields(state)}
    return {name: getattr(state, name) for name in sorted(fields - _REBUILT)}


def _name(number: int) -> str:
    return f"{number:02d}"


def _array_spec(leaf: Any) -> ArraySpec:
    return ArraySpec(leaf.shape, leaf.dtype.name)
