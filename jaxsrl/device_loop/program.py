"""The jitted program: `num_updates` times collect and update, without the host in between."""

import dataclasses
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np

from agents.api import Agent, Array, LearnerState, Metrics
from jaxsrl.device_loop.collect import DeviceRows, RowKeys, collect, make_row_keys
from jaxsrl.envs.protocol import JaxEnv
from jaxsrl.learner.finite_updates import with_finite_updates
from jaxsrl.learner.mesh import LearnerMesh


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RunKeys:
    """Keys that hold for the whole run.

    Attributes:
        rows: of environments and actions.
        update: typed; folded with the number of the update.
    """

    rows: RowKeys
    update: Array


class AdvanceFn(Protocol):
    """Updates `num_updates` times (int32, at least 1). `state` and `rows` are donated; metrics are the last update's."""

    def __call__(
        self, num_updates: np.int32, state: LearnerState, rows: DeviceRows, keys: RunKeys
    ) -> tuple[LearnerState, DeviceRows, Metrics]:
        """The state and rows after the updates."""
        ...


def make_run_keys(run_seed: int, act_key: Array, update_key: Array, num_rows: int) -> RunKeys:
    """The keys of a run.

    Args:
        run_seed: environments draw from a stream of their own that follows from it.
        act_key: typed; serves for nothing but these rows.
        update_key: typed; likewise for the updates.
        num_rows: B.
    """
    return RunKeys(make_row_keys(run_seed, act_key, num_rows), update_key)


def place_keys(mesh: LearnerMesh, keys: RunKeys) -> RunKeys:
    """The keys where the program wants them."""
    return RunKeys(mesh.place_rows(keys.rows), jax.device_put(keys.update, mesh.replicated))


def compile_advance(
    env: JaxEnv,
    agent: Agent,
    mesh: LearnerMesh,
    num_steps: int,
    state: LearnerState,
    rows: DeviceRows,
    keys: RunKeys,
) -> AdvanceFn:
    """The compiled program over the mesh: rows sharded, everything else replicated.

    The number of updates is an argument and not a constant: one program, compiled once, serves every number, so that neither
    the bits nor the compilation time depend on how many updates a dispatch has.

    Args:
        env: environment of every row.
        agent: what acts and learns.
        mesh: to run on.
        num_steps: T.
        state: placed; only its shapes and shardings count, as those of `rows` and `keys`.
        rows: placed.
        keys: placed.
    """
    update = with_finite_updates(agent.update)

    def one(state: LearnerState, rows: DeviceRows, keys: RunKeys) -> tuple[LearnerState, DeviceRows, Metrics]:
        trajectory, rows = collect(env, agent, state.params, rows, keys.rows, state.num_updates, num_steps)
        trajectory = jax.lax.with_sharding_constraint(trajectory, mesh.rows)
        state, metrics = update(state, trajectory, jax.random.fold_in(keys.update, state.num_updates))
        return state, rows, metrics

    def advance(
        num_updates: Array, state: LearnerState, rows: DeviceRows, keys: RunKeys
    ) -> tuple[LearnerState, DeviceRows, Metrics]:
        metrics = jax.eval_shape(one, state, rows, keys)[2]
        nothing = {name: jnp.zeros(leaf.shape, leaf.dtype) for name, leaf in metrics.items()}
        carry = (state, rows, nothing)
        return jax.lax.fori_loop(0, num_updates, lambda _, carry: one(carry[0], carry[1], keys), carry)

    out_shardings = (mesh.state_shardings(state), mesh.leading_rows, mesh.replicated)
    jitted = jax.jit(advance, donate_argnums=(1, 2), out_shardings=out_shardings)
    return jitted.lower(np.int32(1), state, rows, keys).compile()
