"""Jitted program that collects and updates `num_updates` times without the host."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from agents.api import Agent, Array, LearnerState, Metrics
from jaxsrl.collect.inference.act import row_keys
from jaxsrl.device_loop.collect import DeviceRows, RowKeys, collect
from jaxsrl.envs.autoreset import env_run_key, fold_row_keys
from jaxsrl.envs.protocol import JaxEnv
from jaxsrl.learner.finite_updates import SkipCounts
from jaxsrl.learner.mesh import LearnerMesh
from jaxsrl.machine.compiler_options import compiler_options


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RunKeys:
    """Keys for the whole run.

    Attributes:
        rows: keys of environments and actions.
        update: typed key; folded with the number of the update.
    """

    rows: RowKeys
    update: Array


AdvanceFn = Callable[
    [np.int32 | Array, LearnerState, DeviceRows, RunKeys], tuple[LearnerState, DeviceRows, Metrics, SkipCounts]
]
"""Function that updates as often as its first argument says (int32, at least 1). It returns the state and the rows afterwards,
the metrics of the last update, and the counts of skipped ones of all; state and rows of its arguments are donated."""


def make_run_keys(run_seed: int, act_key: Array, update_key: Array, num_rows: int) -> RunKeys:
    """Returns the keys of a run; rows 0 to B - 1 have theirs under every plan.

    Args:
        run_seed: seed of the run; environments use their own stream of it.
        act_key: typed key, used only for these rows.
        update_key: typed key, used only for the updates.
        num_rows: B.
    """
    env = fold_row_keys(env_run_key(run_seed), jnp.arange(num_rows, dtype=jnp.uint32))
    return RunKeys(RowKeys(env, row_keys(act_key, range(num_rows))), update_key)


def place_keys(mesh: LearnerMesh, keys: RunKeys) -> RunKeys:
    """Returns the keys with the program's placement."""
    return RunKeys(mesh.place_rows(keys.rows), jax.device_put(keys.update, mesh.replicated))


def make_advance(env: JaxEnv, agent: Agent, num_steps: int, sharding: jax.sharding.Sharding | None = None) -> AdvanceFn:
    """Returns the program as a function to compile.

    Args:
        env: environment of every row.
        agent: agent that acts and learns.
        num_steps: T.
        sharding: Sharding of trajectories over their rows; None leaves them where they are.
    """

    def one(state: LearnerState, rows: DeviceRows, keys: RunKeys) -> tuple[LearnerState, DeviceRows, Metrics]:
        trajectory, rows = collect(env, agent, state.params, rows, keys.rows, state.num_updates, num_steps)
        if sharding is not None:
            # The agent state has its rows first, and leaves of one axis.
            steps = jax.lax.with_sharding_constraint(dataclasses.replace(trajectory, agent_state=()), sharding)
            trajectory = dataclasses.replace(steps, agent_state=trajectory.agent_state)
        state, metrics = agent.update(state, trajectory, jax.random.fold_in(keys.update, state.num_updates))
        return state, rows, metrics

    def advance(
        num_updates: np.int32 | Array, state: LearnerState, rows: DeviceRows, keys: RunKeys
    ) -> tuple[LearnerState, DeviceRows, Metrics, SkipCounts]:
        def body(_: Array, carry: tuple) -> tuple:
            state, rows, metrics = one(carry[0], carry[1], keys)
            return state, rows, metrics, carry[3].after(metrics)

        metrics = jax.eval_shape(one, state, rows, keys)[2]
        zeros = {name: jnp.zeros(leaf.shape, leaf.dtype) for name, leaf in metrics.items()}
        counts = SkipCounts(*[jnp.zeros((), jnp.int32)] * len(SkipCounts._fields))
        return jax.lax.fori_loop(0, num_updates, body, (state, rows, zeros, counts))

    return advance


def compile_advance(
    env: JaxEnv,
    agent: Agent,
    mesh: LearnerMesh,
    num_steps: int,
    state: LearnerState,
    rows: DeviceRows,
    keys: RunKeys,
) -> AdvanceFn:
    """Compiles the program over the mesh: rows sharded, everything else replicated.

    The number of updates is an argument, not a constant: one program, compiled once, serves every number. Bits and
    compilation time do not depend on the updates per dispatch.

    Only shapes and shardings of `state`, `rows` and `keys`, which are placed, are used. The rest is as in `make_advance`.
    """
    advance = make_advance(env, agent, num_steps, mesh.rows)
    out_shardings = (mesh.state_shardings(state), mesh.leading_rows, mesh.replicated, mesh.replicated)
    options = compiler_options(mesh.devices[0].platform)
    jitted = jax.jit(advance, donate_argnums=(1, 2), out_shardings=out_shardings, compiler_options=options)
    return jitted.lower(np.int32(1), state, rows, keys).compile()
