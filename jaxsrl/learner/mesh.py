"""Devices and shardings: the only file that names a mesh axis.

Rows (B) are sharded over the axis `data`, everything else is replicated. This is what `jax.pmap` lowers to since jax 0.8;
the agent's update contains no axis name, the compiler inserts the all-reduces.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from agents.api import Agent, Array, LearnerState, Metrics, Params, Trajectory
from envpool_bridge.layout import SlotViews

Device = Any  # a jax.Device, which is no type to type checkers
KeyedUpdate = Callable[[LearnerState, Trajectory], tuple[LearnerState, Metrics]]


class LearnerMesh:
    """A row-sharded mesh and what is placed on it.

    Attributes:
        devices: of the mesh.
        aliases_host: whether placed batches may be views of the host's memory (true on CPU).
    """

    def __init__(self, devices: Sequence[Device]) -> None:
        """A mesh of one axis over `devices`."""
        self.devices = tuple(devices)
        self.aliases_host = self.devices[0].platform == "cpu"
        mesh = Mesh(np.array(self.devices), ("data",))
        self.replicated = NamedSharding(mesh, PartitionSpec())
        self.rows = NamedSharding(mesh, PartitionSpec(None, "data"))
        self._copy = jax.jit(lambda params: jax.tree.map(jax.numpy.copy, params))

    def place_state(self, state: LearnerState) -> LearnerState:
        """The state with the sharding that the update returns: another one would compile a second time."""
        return jax.device_put(state, self.replicated)

    def place_batch(self, slot: SlotViews) -> Trajectory:
        """The slot as a trajectory sharded over rows. It may alias the slot: see `aliases_host`."""
        trajectory = Trajectory(
            observation=slot.observation,  # pyright: ignore[reportArgumentType]
            is_first=slot.is_first,  # pyright: ignore[reportArgumentType]
            action=slot.action,  # pyright: ignore[reportArgumentType]
            reward=slot.reward,  # pyright: ignore[reportArgumentType]
            terminated=slot.terminated,  # pyright: ignore[reportArgumentType]
            truncated=slot.truncated,  # pyright: ignore[reportArgumentType]
            valid=slot.valid,  # pyright: ignore[reportArgumentType]
            policy_version=slot.policy_version,  # pyright: ignore[reportArgumentType]
            extras=slot.extras,  # pyright: ignore[reportArgumentType]
        )
        return jax.device_put(trajectory, self.rows)

    def copy_params(self, params: Params, device: Device) -> Params:
        """A copy on `device` that outlives the donation of `params` to the next update."""
        return jax.device_put(self._copy(params), device)

    def jit_update(self, agent: Agent, run_key: Array) -> KeyedUpdate:
        """The agent's update over the mesh: donates the state, and folds the number of updates into `run_key`."""

        def update(state: LearnerState, batch: Trajectory) -> tuple[LearnerState, Metrics]:
            return agent.update(state, batch, jax.random.fold_in(run_key, state.num_updates))

        return jax.jit(update, donate_argnums=0, out_shardings=(self.replicated, self.replicated))
