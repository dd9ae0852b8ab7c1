"""Collection of T steps as one `lax.scan` on the device. The trajectory is the one that the pool would collect."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from agents.api import Agent, AgentState, Array, Mode, Params, Trajectory
from envpool_bridge.envs.protocol import first_stages
from envpool_bridge.spec.specs import NEXT_LEVEL
from jaxsrl.device_loop.episode_totals import EpisodeSums, add_step, init_episode_sums
from jaxsrl.envs.autoreset import RowsState, StepOutput, reset_keyed_rows, step_keyed_rows
from jaxsrl.envs.protocol import JaxEnv, Observation


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DeviceRows:
    """State of B rows between steps. All leaves have B first and are computed row by row.

    Attributes:
        envs: state of the environments.
        agent_state: recurrent state, [B, ...] each; () for an agent without memory.
        episodes: returns and lengths of their episodes.
    """

    envs: RowsState
    agent_state: AgentState
    episodes: EpisodeSums


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RowKeys:
    """Keys of B rows for the whole run; [B] typed each.

    Attributes:
        env: folded with episode and step (`envs.autoreset`).
        act: folded with the step of the run (`collect.inference.act`).
    """

    env: Array
    act: Array


def init_rows(env: JaxEnv, agent: Agent, keys: RowKeys, episode: int = 0) -> DeviceRows:
    """Returns rows at the start of an episode, 0 for a new run."""
    num_rows = keys.env.shape[0]
    first = first_stages(env.spec(), range(num_rows))
    levels = jnp.asarray(first, jnp.int32) if first else None
    episodes = jnp.full(num_rows, episode % 2**32, jnp.uint32)
    envs = reset_keyed_rows(env, keys.env, jnp.arange(num_rows, dtype=jnp.uint32), episodes, levels)
    return DeviceRows(envs, agent.initial_agent_state(num_rows), init_episode_sums(num_rows))


def collect(
    env: JaxEnv,
    agent: Agent,
    params: Params,
    rows: DeviceRows,
    keys: RowKeys,
    version: Array,
    num_steps: int,
) -> tuple[Trajectory, DeviceRows]:
    """Collects one trajectory of all rows, and returns it with the next state of the rows. Pure.

    Args:
        env: environment of every row.
        agent: agent whose `act` is called, in mode SAMPLE.
        params: parameters that act.
        rows: rows after the `version` previous trajectories.
        keys: keys of the rows; not consumed.
        version: [] int32, version of `params`; step t of this trajectory is the run's step `version * num_steps + t`.
        num_steps: T.

    Returns:
        The trajectory, with the values and dtypes of the pool's slot, and the rows.
    """
    has_levels = env.spec().levels > 0

    def step(carry: DeviceRows, step_keys: Array) -> tuple[DeviceRows, _Step]:
        envs = carry.envs
        action, extras, agent_state = agent.act(
            params, envs.observation, carry.agent_state, envs.is_first, step_keys, Mode.SAMPLE
        )
        # Cast to the dtypes of a slot.
        action = action.astype(env.spec().action.dtype)
        extras = {name: extras[name].astype(spec.dtype) for name, spec in agent.extras.items()}
        next_envs, output = step_keyed_rows(env, keys.env, envs, action, extras[NEXT_LEVEL] if has_levels else None)
        next_carry = DeviceRows(next_envs, agent_state, add_step(carry.episodes, output))
        return next_carry, _Step(envs.observation, envs.is_first, action, extras, output)

    after, steps = jax.lax.scan(step, rows, _act_keys(keys.act, version, num_steps))
    trajectory = Trajectory(
        observation=jax.tree.map(
            lambda before, last: jnp.concatenate([before, last[None]]), steps.observation, after.envs.observation
        ),
        is_first=jnp.concatenate([steps.is_first, after.envs.is_first[None]]),
        action=steps.action,
        reward=steps.output.reward,
        terminated=steps.output.terminated,
        truncated=steps.output.truncated,
        valid=steps.output.valid,
        policy_version=jnp.full(steps.output.valid.shape, version, jnp.int32),
        extras=steps.extras,
        agent_state=rows.agent_state,
    )
    return trajectory, after


class _Step(NamedTuple):
    """Part of the trajectory from one step: observation and is_first before it, the rest [B, ...] after it."""

    observation: Observation
    is_first: Array
    action: Array
    extras: dict[str, Array]
    output: StepOutput


def _act_keys(act: Array, version: Array, num_steps: int) -> Array:
    """Returns [T, B] keys of all steps, by one vectorized call: inside the scan, each step would pay for calls on B rows."""
    steps = version.astype(jnp.uint32) * jnp.uint32(num_steps) + jnp.arange(num_steps, dtype=jnp.uint32)
    fold_rows = jax.vmap(jax.random.fold_in, in_axes=(0, None))
    return jax.vmap(fold_rows, in_axes=(None, 0))(act, steps)
