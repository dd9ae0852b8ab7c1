"""B rows of one JAX environment with Gymnasium's NEXT_STEP autoreset, as pure functions.

An environment of A agents has A adjacent rows, which start and end together. Each has a copy of the environment's state, so that
every leaf has B first.

After a step with `terminated` or `truncated`, the row's next step ignores its action and resets. It has `valid=False`, reward
0 and `is_first=True`, as environment workers write it (`envpool_bridge.envs.protocol`), so that agents see no difference.

The key of the k-th step of an episode is `fold_in(episode_key, k)`, of its reset `fold_in(episode_key, 0)`, where
`episode_key = fold_in(fold_in(run_key, row id), episode)` and `run_key = env_run_key(run_seed)`. So a row's trajectory
follows from run seed, row id and actions, for any placement of rows on processes or devices. It is bit-for-bit identical on
devices of one kind. The reset of an episode with a level has a key that follows from the level alone, the same in all runs.

Cost: a row cannot branch under vmap, so every step also computes a reset and selects. This is negligible for a small task. It
halves the speed where a reset costs as much as a step (physics).
"""

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from envpool_bridge.spec.specs import ArraySpec, EnvSpec
from jaxsrl.envs.protocol import EnvState, JaxEnv, Observation

Array = jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RowsState:
    """State of B rows. All leaves have B first and are computed row by row: shard them over B.

    Attributes:
        env_state: pytree, [B, ...] each.
        observation: [B, ...] each leaf, the newest.
        is_first: [B] bool, `observation` is the first of an episode.
        ended: [B] bool, the last step ended the episode: the next one resets.
        row_id: [B] uint32, row of the run.
        episode: [B] uint32, index of each row's episode.
        step: [B] uint32, steps since the start of the episode.
    """

    env_state: EnvState
    observation: Observation
    is_first: Array
    ended: Array
    row_id: Array
    episode: Array
    step: Array


class StepOutput(NamedTuple):
    """One step of B rows, in the form of a trajectory.

    Attributes:
        observation: [B, ...] each leaf, the trajectory's `observation[t + 1]`.
        is_first: [B] bool, the trajectory's `is_first[t + 1]`.
        reward: [B] float32, environment reward units.
        terminated: [B] bool.
        truncated: [B] bool.
        valid: [B] bool, False where the step only reset.
    """

    observation: Observation
    is_first: Array
    reward: Array
    terminated: Array
    truncated: Array
    valid: Array


_ENV_STREAM, _LEVEL_STREAM = 0x656E76, 0x6C6576  # "env", "lev"


def env_run_key(run_seed: int) -> Array:
    """Returns the run key of environments.

    It differs from `key(run_seed)`, because `split(key, n)[i]` is `fold_in(key, i)`: the keys that a run splits off for
    actions and updates would equal those of rows 0, 1 and 2.
    """
    return jax.random.fold_in(jax.random.key(run_seed), _ENV_STREAM)


def reset_rows(env: JaxEnv, run_key: Array, row_ids: Array, episodes: Array | None = None) -> RowsState:
    """Resets rows to the start of an episode.

    Args:
        env: environment of the rows.
        run_key: typed key from `env_run_key`; not consumed: pass the same one to every `step_rows`.
        row_ids: [B] integers.
        episodes: [B] integers, episode that each row starts; None for the first (0).
    """
    row_ids = jnp.asarray(row_ids, jnp.uint32)
    return reset_keyed_rows(env, fold_row_keys(run_key, row_ids), row_ids, episodes)


def step_rows(env: JaxEnv, run_key: Array, state: RowsState, action: Array) -> tuple[RowsState, StepOutput]:
    """Steps every row; rows whose episode ended at the previous step are reset instead.

    Args:
        env: the environment of `reset_rows`.
        run_key: the key of `reset_rows`; not consumed.
        state: state of the rows.
        action: [B, ...] in stored form; clipped to the bounds of a continuous space, as in the pool.
    """
    return step_keyed_rows(env, fold_row_keys(run_key, state.row_id), state, action)


def fold_row_keys(run_key: Array, row_ids: Array) -> Array:
    """Returns [B] typed keys: the run's key folded with each row's id."""
    return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(run_key, row_ids)


def reset_keyed_rows(
    env: JaxEnv, row_keys: Array, row_ids: Array, episodes: Array | None = None, levels: Array | None = None
) -> RowsState:
    """Resets rows with one key each, `row_keys` [B], or to levels [B]; see `reset_rows`."""
    row_ids = jnp.asarray(row_ids, jnp.uint32)
    zeros = jnp.zeros_like(row_ids)
    first_episodes = zeros if episodes is None else jnp.asarray(episodes, jnp.uint32)
    num_agents = len(env.spec().agents)
    keys = jax.vmap(_step_key)(*(_one_of(num_agents, leaf) for leaf in (row_keys, first_episodes, zeros)))
    if levels is not None:
        keys = jax.vmap(_level_key)(_one_of(num_agents, levels))
    env_state, observation = jax.vmap(env.reset)(keys)
    env_state = _for_each(num_agents, env_state)
    observation = jax.tree.map(partial(_by_row, num_agents), observation)
    false = jnp.zeros(row_ids.shape, bool)
    return RowsState(
        env_state=jax.tree.map(_strongly_typed, env_state),
        observation=jax.tree.map(_strongly_typed, observation),
        is_first=~false,
        ended=false,
        row_id=row_ids,
        episode=first_episodes,
        step=zeros,
    )


def step_keyed_rows(
    env: JaxEnv, row_keys: Array, state: RowsState, action: Array, levels: Array | None = None
) -> tuple[RowsState, StepOutput]:
    """Steps rows with one key each, `row_keys` [B], and resets them to `levels` [B] if given; see `step_rows`."""
    spec = env.spec()
    num_agents = len(spec.agents)

    def step_row(
        row_key: Array, row: RowsState, given: Array, level: Array | None = None
    ) -> tuple[RowsState, StepOutput]:
        return _step_row(env, spec, row_key, row, given, level)

    if not num_agents:
        given = () if levels is None else (levels,)
        return jax.vmap(step_row)(row_keys, state, action, *given)
    envs = jax.tree.map(partial(_one_of, num_agents), state)
    envs = dataclasses.replace(envs, observation=jax.tree.map(partial(_by_env, num_agents), state.observation))
    after, output = jax.vmap(step_row)(_one_of(num_agents, row_keys), envs, _by_env(num_agents, action))
    observation = jax.tree.map(partial(_by_row, num_agents), output.observation)
    reward = _by_row(num_agents, output.reward)
    output = _for_each(num_agents, output)._replace(observation=observation, reward=reward)
    return dataclasses.replace(_for_each(num_agents, after), observation=observation, row_id=state.row_id), output


def _one_of(num_agents: int, leaf: Array) -> Array:
    """Returns the value of the first row of each environment, [E, ...] of [B, ...]."""
    return _by_env(num_agents, leaf)[:, 0] if num_agents else leaf


def _for_each(num_agents: int, envs: Any) -> Any:
    """Returns a copy of each environment's values for each of its rows, [B, ...] of [E, ...]."""

    def copied(leaf: Array) -> Array:
        return _by_row(num_agents, jnp.broadcast_to(leaf[:, None], (len(leaf), num_agents, *leaf.shape[1:])))

    return jax.tree.map(copied, envs) if num_agents else envs


def _by_env(num_agents: int, leaf: Array) -> Array:
    return leaf.reshape((-1, num_agents, *leaf.shape[1:]))


def _by_row(num_agents: int, leaf: Array) -> Array:
    return leaf.reshape((-1, *leaf.shape[2:])) if num_agents else leaf


def _step_row(
    env: JaxEnv, spec: EnvSpec, row_key: Array, row: RowsState, action: Array, level: Array | None = None
) -> tuple[RowsState, StepOutput]:
    """Steps one row; leaves of RowsState lack the axis B."""
    resets = row.ended
    episode = row.episode + resets.astype(jnp.uint32)
    step = jnp.where(resets, jnp.uint32(0), row.step + jnp.uint32(1))
    key = _step_key(row_key, episode, step)  # only one of reset and step is used, so one key serves both
    first_state, first_observation = env.reset(key if level is None else _level_key(level))
    stepped = env.step(row.env_state, _within_bounds(spec, action), key)

    def select(old: Array, first: Array, new: Array) -> Array:
        return _with_same_dtype(spec, old, jnp.where(resets, first, new))

    terminated, truncated = stepped.terminated & ~resets, stepped.truncated & ~resets
    observation = jax.tree.map(select, row.observation, first_observation, stepped.observation)
    reward = jnp.where(resets, jnp.float32(0), stepped.reward.astype(jnp.float32))
    next_row = RowsState(
        env_state=jax.tree.map(select, row.env_state, first_state, stepped.state),
        observation=observation,
        is_first=resets,
        ended=terminated | truncated,
        row_id=row.row_id,
        episode=episode,
        step=step,
    )
    return next_row, StepOutput(observation, resets, reward, terminated, truncated, ~resets)


def _step_key(row_key: Array, episode: Array, step: Array) -> Array:
    return jax.random.fold_in(jax.random.fold_in(row_key, episode), step)


def _level_key(level: Array) -> Array:
    return jax.random.fold_in(jax.random.key(_LEVEL_STREAM), level)


def _within_bounds(spec: EnvSpec, action: Array) -> Array:
    if not isinstance(spec.action, ArraySpec):
        return action
    return jnp.clip(action, spec.action.bound("low"), spec.action.bound("high"))


def _strongly_typed(leaf: Any) -> Array:
    # A weak type from a Python number would become strong at the first step, and a scan rejects a carry that changes.
    leaf = jnp.asarray(leaf)
    return leaf if jnp.issubdtype(leaf.dtype, jax.dtypes.extended) else jax.lax.convert_element_type(leaf, leaf.dtype)


def _with_same_dtype(spec: EnvSpec, old: Array, new: Array) -> Array:
    if old.dtype != new.dtype:
        raise TypeError(f"{spec.env_id}: step must keep the dtypes that reset returns: {old.dtype} became {new.dtype}")
    return _strongly_typed(new)
