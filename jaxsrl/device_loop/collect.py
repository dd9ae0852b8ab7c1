"""T steps of acting and environment as one `lax.scan`: the trajectory that the pool would have collected, on the device."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from agents.api import Agent, AgentState, Array, Mode, Params, Trajectory
from jaxsrl.collect.inference.act import row_keys
from jaxsrl.device_loop.episode_totals import EpisodeSums, add_step, init_episode_sums
from jaxsrl.envs.autoreset import RowsState, StepOutput, env_run_key, fold_row_keys, reset_keyed_rows, step_keyed_rows
from jaxsrl.envs.protocol import JaxEnv


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DeviceRows:
    """All that B rows carry from one step to the next. All leaves have B first and are computed row by row.

    Attributes:
        envs: where the environments are.
        agent_state: the policy's recurrent state, [B, ...] each; () if memoryless.
        episodes: their returns and lengths.
    """

    envs: RowsState
    agent_state: AgentState
    episodes: EpisodeSums


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RowKeys:
    """Keys of B rows, which hold for the whole run; [B] typed each.

    Attributes:
        env: folded with episode and step (`jax_envs.autoreset`).
        act: folded with the step of the run (`inference.act`).
    """

    env: Array
    act: Array


def make_row_keys(run_seed: int, act_key: Array, num_rows: int) -> RowKeys:
    """The keys that rows 0 to B - 1 have under every plan.

    Args:
        run_seed: of the run; environments draw from a stream of their own.
        act_key: of the run, typed; it serves for nothing but these rows.
        num_rows: B.
    """
    env = fold_row_keys(env_run_key(run_seed), jnp.arange(num_rows, dtype=jnp.uint32))
    return RowKeys(env, row_keys(act_key, range(num_rows)))


def init_rows(env: JaxEnv, agent: Agent, keys: RowKeys) -> DeviceRows:
    """Rows at the beginning of a run, each in its episode 0."""
    num_rows = keys.env.shape[0]
    envs = reset_keyed_rows(env, keys.env, jnp.arange(num_rows, dtype=jnp.uint32))
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
    """One trajectory of all rows, and the rows after it. Pure.

    Args:
        env: environment of every row.
        agent: whose `act` chooses, in mode SAMPLE.
        params: to act with.
        rows: after the `version` trajectories before this one.
        keys: of the rows; not consumed.
        version: [] int32, of `params`; step t of this trajectory is the run's step `version * num_steps + t`.
        num_steps: T.

    Returns:
        The trajectory, with the values and dtypes of the pool's slot, and the rows.
    """

    def step(carry: DeviceRows, step_keys: Array) -> tuple[DeviceRows, _Step]:
        envs = carry.envs
        action, extras, agent_state = agent.act(
            params, envs.observation, carry.agent_state, envs.is_first, step_keys, Mode.SAMPLE
        )
        # In the dtypes that a slot holds.
        action = action.astype(env.spec().action.dtype)
        extras = {name: extras[name].astype(spec.dtype) for name, spec in agent.extras.items()}
        next_envs, output = step_keyed_rows(env, keys.env, envs, action)
        next_carry = DeviceRows(next_envs, agent_state, add_step(carry.episodes, output))
        return next_carry, _Step(envs.observation, envs.is_first, action, extras, output)

    after, steps = jax.lax.scan(step, rows, _act_keys(keys.act, version, num_steps))
    trajectory = Trajectory(
        observation=jnp.concatenate([steps.observation, after.envs.observation[None]]),
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
    """What one step adds to the trajectory: observation and is_first before it, the rest [B, ...] of it."""

    observation: Array
    is_first: Array
    action: Array
    extras: dict[str, Array]
    output: StepOutput


def _act_keys(act: Array, version: Array, num_steps: int) -> Array:
    """[T, B] keys of all steps. One vectorised call: inside the scan, each step would pay for calls on B rows."""
    steps = version.astype(jnp.uint32) * jnp.uint32(num_steps) + jnp.arange(num_steps, dtype=jnp.uint32)
    of_rows = jax.vmap(jax.random.fold_in, in_axes=(0, None))
    return jax.vmap(of_rows, in_axes=(None, 0))(act, steps)
