"""B rows of one JAX environment with Gymnasium's NEXT_STEP autoreset, as pure functions.

After a step with `terminated` or `truncated`, the row's next step ignores its action, resets, and has `valid=False`, reward 0
and `is_first=True`: what environment workers write (`envpool_bridge.envs.protocol`), so that agents see no difference.

The key of the k-th step of an episode is `fold_in(episode_key, k)`, of its reset `fold_in(episode_key, 0)`, where
`episode_key = fold_in(fold_in(run_key, row id), episode)` and `run_key = env_run_key(run_seed)`. So a row's trajectory
follows from run seed, row id and actions, however the rows are spread over processes or devices; to the last bit on devices
of one kind.

Cost: a row cannot branch under vmap, so every step computes a reset too and selects. That is a few numbers for a small task;
where a reset costs as much as a step (physics), it halves the speed.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from envpool_bridge.spec.specs import ArraySpec, EnvSpec
from jaxsrl.envs.protocol import EnvState, JaxEnv

Array = jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RowsState:
    """Where B rows are. All leaves have B first and are computed row by row: shard them over B.

    Attributes:
        env_state: pytree, [B, ...] each.
        observation: [B, ...], the newest.
        is_first: [B] bool, `observation` begins an episode.
        ended: [B] bool, the last step ended the episode: the next one resets.
        row_id: [B] uint32, of the run.
        episode: [B] uint32, index of the episode each row is in.
        step: [B] uint32, steps since the episode began.
    """

    env_state: EnvState
    observation: Array
    is_first: Array
    ended: Array
    row_id: Array
    episode: Array
    step: Array


class StepOutput(NamedTuple):
    """One step of B rows, as a trajectory holds it.

    Attributes:
        observation: [B, ...], the trajectory's `observation[t + 1]`.
        is_first: [B] bool, the trajectory's `is_first[t + 1]`.
        reward: [B] float32, environment reward units.
        terminated: [B] bool.
        truncated: [B] bool.
        valid: [B] bool, False where the step only reset.
    """

    observation: Array
    is_first: Array
    reward: Array
    terminated: Array
    truncated: Array
    valid: Array


_ENV_STREAM = 0x656E76  # "env"


def env_run_key(run_seed: int) -> Array:
    """The run key of environments.

    Apart from `key(run_seed)`, because `split(key, n)[i]` is `fold_in(key, i)`: the keys that a run splits off for actions and
    updates would be those of rows 0, 1 and 2.
    """
    return jax.random.fold_in(jax.random.key(run_seed), _ENV_STREAM)


def reset_rows(env: JaxEnv, run_key: Array, row_ids: Array, episodes: Array | None = None) -> RowsState:
    """Rows at the beginning of an episode.

    Args:
        env: to reset.
        run_key: typed, of `env_run_key`; not consumed: the same one goes to every `step_rows`.
        row_ids: [B] integers.
        episodes: [B] integers, which episode each row begins; None for the first (0).
    """
    row_ids = jnp.asarray(row_ids, jnp.uint32)
    return reset_keyed_rows(env, fold_row_keys(run_key, row_ids), row_ids, episodes)


def step_rows(env: JaxEnv, run_key: Array, state: RowsState, action: Array) -> tuple[RowsState, StepOutput]:
    """One step of every row; rows whose episode ended at the step before are reset instead.

    Args:
        env: the one that `reset_rows` was called with.
        run_key: likewise; not consumed.
        state: of the rows.
        action: [B, ...] in stored form; what a continuous space does not allow is clipped to it, as the pool does.
    """
    return step_keyed_rows(env, fold_row_keys(run_key, state.row_id), state, action)


def fold_row_keys(run_key: Array, row_ids: Array) -> Array:
    """[B] typed keys: the run's key folded with each row's id."""
    return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(run_key, row_ids)


def reset_keyed_rows(env: JaxEnv, row_keys: Array, row_ids: Array, episodes: Array | None = None) -> RowsState:
    """`reset_rows` of rows that have a key each, `row_keys` [B]."""
    row_ids = jnp.asarray(row_ids, jnp.uint32)
    zeros = jnp.zeros_like(row_ids)
    begun = zeros if episodes is None else jnp.asarray(episodes, jnp.uint32)
    keys = jax.vmap(_step_key)(row_keys, begun, zeros)
    env_state, observation = jax.vmap(env.reset)(keys)
    false = jnp.zeros(row_ids.shape, bool)
    return RowsState(
        env_state=jax.tree.map(_strongly_typed, env_state),
        observation=_strongly_typed(observation),
        is_first=~false,
        ended=false,
        row_id=row_ids,
        episode=begun,
        step=zeros,
    )


def step_keyed_rows(env: JaxEnv, row_keys: Array, state: RowsState, action: Array) -> tuple[RowsState, StepOutput]:
    """`step_rows` of rows that have a key each, `row_keys` [B]."""
    spec = env.spec()

    def step_row(row_key: Array, row: RowsState, given: Array) -> tuple[RowsState, StepOutput]:
        return _step_row(env, spec, row_key, row, given)

    return jax.vmap(step_row)(row_keys, state, action)


def _step_row(
    env: JaxEnv, spec: EnvSpec, row_key: Array, row: RowsState, action: Array
) -> tuple[RowsState, StepOutput]:
    """One row; scalars where RowsState has [B]."""
    resets = row.ended
    episode = row.episode + resets.astype(jnp.uint32)
    step = jnp.where(resets, jnp.uint32(0), row.step + jnp.uint32(1))
    key = _step_key(row_key, episode, step)  # only one of reset and step is kept, so one key serves both
    first_state, first_observation = env.reset(key)
    stepped = env.step(row.env_state, _within_bounds(spec, action), key)

    def select(old: Array, first: Array, new: Array) -> Array:
        return _kept_dtype(spec, old, jnp.where(resets, first, new))

    terminated, truncated = stepped.terminated & ~resets, stepped.truncated & ~resets
    observation = select(row.observation, first_observation, stepped.observation)
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


def _within_bounds(spec: EnvSpec, action: Array) -> Array:
    if not isinstance(spec.action, ArraySpec):
        return action
    return jnp.clip(action, spec.action.bound("low"), spec.action.bound("high"))


def _strongly_typed(leaf: Any) -> Array:
    # A weak type from a Python number would become strong at the first step, and a scan refuses a carry that changes.
    leaf = jnp.asarray(leaf)
    return leaf if jnp.issubdtype(leaf.dtype, jax.dtypes.extended) else jax.lax.convert_element_type(leaf, leaf.dtype)


def _kept_dtype(spec: EnvSpec, old: Array, new: Array) -> Array:
    if old.dtype != new.dtype:
        raise TypeError(f"{spec.env_id}: step must keep the dtypes that reset returns: {old.dtype} became {new.dtype}")
    return _strongly_typed(new)
