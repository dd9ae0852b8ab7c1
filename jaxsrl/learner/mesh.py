"""Devices and shardings: the only file that names a mesh axis.

Rows (B) are sharded over the axis `data`, everything else is replicated. `jax.pmap` lowers to this since jax 0.8. The agent's
update contains no axis name, and the compiler inserts the all-reduces.

A mesh may have devices of several processes (`jaxsrl.cluster.learners`). Each process then places the slots of its own rows on
its own devices and publishes copies there. Otherwise all processes call the same programs in the same order.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from agents.api import Agent, Array, LearnerState, Metrics, Params, ReplayAgent, Sample, Trajectory
from envpool_bridge.shm.slots import SlotViews
from envpool_bridge.spec.tree import map_leaves
from jaxsrl.machine.compiler_options import compiler_options
from jaxsrl.machine.devices import Device
from jaxsrl.replay.host.sample_pool import SampleMemory, is_large
from jaxsrl.replay.state import state_shardings

KeyedUpdate = Callable[[LearnerState, Trajectory], tuple[LearnerState, Metrics]]


class LearnerMesh:
    """Mesh of devices over which rows are sharded, and placement on it.

    Args:
        devices: Devices of the mesh, on one axis.

    Attributes:
        devices: Devices of the mesh.
        local_devices: devices of this process; all of them, unless the mesh spans processes.
        spans_processes: whether some devices belong to other processes.
        aliases_host: whether placed batches may be views of host memory (true on CPU).
        replicated: sharding of values that every device has whole.
        rows: sharding of [T, B, ...] arrays over B.
        leading_rows: sharding of [B, ...] arrays over B.
    """

    def __init__(self, devices: Sequence[Device]) -> None:
        self.devices = tuple(devices)
        process = jax.process_index()
        self.local_devices = tuple(device for device in self.devices if device.process_index == process)
        self.spans_processes = len(self.local_devices) < len(self.devices)
        self.aliases_host = self.devices[0].platform == "cpu"
        mesh = Mesh(np.array(self.devices), ("data",))
        self.replicated = NamedSharding(mesh, PartitionSpec())
        self.rows = NamedSharding(mesh, PartitionSpec(None, "data"))
        self.leading_rows = NamedSharding(mesh, PartitionSpec("data"))
        self._copies = NamedSharding(Mesh(np.array(self.local_devices), ("data",)), PartitionSpec())
        self._memory: dict[tuple, SampleMemory] = {}
        # Publication takes an array of one device as it is; it would search each array of a mesh for its shard.
        single = SingleDeviceSharding(self.devices[0]) if len(self.devices) == 1 else None
        self._copy = jax.jit(lambda params: jax.tree.map(jax.numpy.copy, params), out_shardings=single)

    def place_state(self, state: LearnerState) -> LearnerState:
        """Returns the state with the sharding that the update returns; another one would compile a second time."""
        if self.spans_processes:
            return jax.tree.map(self._replicate, state)
        return jax.device_put(_apart(state), self.state_shardings(state))

    def state_shardings(self, state: LearnerState) -> LearnerState:
        """Returns the sharding of each leaf: replicated, except for replayed experience, whose rows are sharded."""
        return state_shardings(state, self.rows, self.replicated)

    def place_batch(self, slots: Sequence[SlotViews]) -> Trajectory:
        """Returns slots, which share the rows in order, as a trajectory sharded over rows. It may alias them (`aliases_host`).

        Observations are the slots' single frames (see `agents.transforms.frame_stacking`).
        """
        parts = [as_trajectory(slot) for slot in slots]
        # Keep the step axis for the sharding; it is removed below.
        states = [map_leaves(lambda array: array[:1], slot.agent_state) for slot in slots]
        placed, state = jax.tree.map(lambda *leaves: self._join_rows(leaves), *zip(parts, states, strict=True))
        if not self.spans_processes:
            placed, state = jax.device_put((placed, state), self.rows)
        return dataclasses.replace(placed, agent_state=jax.tree.map(lambda leaf: leaf[0], state))

    def _join_rows(self, leaves: Sequence[np.ndarray]) -> Array | np.ndarray:
        """Returns [T, b, ...] of this process's pools as one array over the devices; a single leaf may stay on the host.

        With several devices, the rows of one are not contiguous in a slot. Copying them into reused memory takes a third of the
        time of jax's own copies into new memory. Small leaves are faster in one `device_put` of all.
        """
        share = sum(leaf.shape[1] for leaf in leaves) // len(self.local_devices)
        one_copy = len(self.local_devices) == 1 or not is_large(leaves[0].nbytes // len(self.local_devices))
        if len(leaves) == 1 and one_copy and not self.spans_processes:
            return leaves[0]
        shards = [self._shard(leaves, index, share) for index in range(len(self.local_devices))]
        shape = (leaves[0].shape[0], share * len(self.devices), *leaves[0].shape[2:])
        placed = jax.device_put(shards, list(self.local_devices))
        return jax.make_array_from_single_device_arrays(shape, self.rows, placed)

    def _shard(self, leaves: Sequence[np.ndarray], index: int, share: int) -> np.ndarray:
        """Returns the rows of a device as a contiguous array: a view of a whole leaf, else a copy."""
        begin, end = index * share, (index + 1) * share
        stops = np.cumsum([leaf.shape[1] for leaf in leaves])
        pieces = [
            leaf[:, max(0, begin - (stop - leaf.shape[1])) : end - (stop - leaf.shape[1])]
            for leaf, stop in zip(leaves, stops, strict=True)
            if begin < stop and end > stop - leaf.shape[1]
        ]
        if len(pieces) == 1 and pieces[0].flags.c_contiguous:
            return pieces[0]
        shape = (leaves[0].shape[0], share, *leaves[0].shape[2:])
        key = (index, shape, leaves[0].dtype)
        if key not in self._memory:
            self._memory[key] = SampleMemory(shape, leaves[0].dtype)
        return np.concatenate(pieces, axis=1, out=self._memory[key].take())

    def place_rows(self, rows: Any) -> Any:
        """Returns a pytree of [B, ...] arrays, sharded over B. Host memory is copied, so that it may be donated."""
        return jax.device_put(rows, self.leading_rows, may_alias=False)

    def shard_samples(self, agent: ReplayAgent) -> ReplayAgent:
        """Returns the agent with gradient steps that shard the sample over devices (see `sample_shardings`)."""

        def update(state: LearnerState, sample: Sample, key: Array) -> tuple[LearnerState, Metrics, Array]:
            return agent.update(state, jax.lax.with_sharding_constraint(sample, self.sample_shardings(sample)), key)

        return agent._replace(update=update)

    def sample_shardings(self, sample: Sample) -> Sample:
        """Returns the sharding of each leaf of a sample: over rows if they divide evenly, else replicated."""
        if sample.trajectory.reward.shape[1] % len(self.devices):
            return jax.tree.map(lambda _: self.replicated, sample)
        steps = jax.tree.map(lambda _: self.rows, sample.trajectory)
        state = jax.tree.map(lambda _: self.leading_rows, sample.trajectory.agent_state)
        whole: Any = self.replicated
        return Sample(dataclasses.replace(steps, agent_state=state), whole, whole)

    def copy_params(self, params: Params) -> Params:
        """Returns a copy on this process's devices that outlives the donation of `params` to the next update."""
        params = self.local(params)
        if len(self.devices) == 1 and jax.tree.leaves(params)[0].devices() != set(self.devices):
            params = jax.device_put(params, self.devices[0])  # those of a parameter server on another device
        return self._copy(params)

    def local(self, tree: Any) -> Any:
        """Returns a pytree of replicated arrays on this process's devices, usable without the other processes."""
        if not self.spans_processes:
            return tree
        return jax.tree.map(
            lambda leaf: jax.make_array_from_single_device_arrays(
                leaf.shape, self._copies, [shard.data for shard in leaf.addressable_shards]
            ),
            tree,
        )

    def _replicate(self, leaf: Any) -> Array:
        """Returns a value that every process has as one array over all devices, in new memory so that it may be donated."""
        value = np.asarray(leaf)
        shards = [jax.device_put(value, device, may_alias=False) for device in self.local_devices]
        return jax.make_array_from_single_device_arrays(value.shape, self.replicated, shards)

    def jit_update(self, agent: Agent, run_key: Array) -> KeyedUpdate:
        """Returns the agent's update, compiled for the mesh. It donates the state and folds its number into `run_key`."""

        def update(state: LearnerState, batch: Trajectory) -> tuple[LearnerState, Metrics]:
            return agent.update(state, batch, jax.random.fold_in(run_key, state.num_updates))

        shardings = self.state_shardings(jax.eval_shape(agent.init, run_key))
        options = compiler_options(self.devices[0].platform)
        return jax.jit(update, donate_argnums=0, out_shardings=(shardings, self.replicated), compiler_options=options)

    def state_shapes(self, agent: Agent, key: Array) -> LearnerState:
        """Returns the learner state that `place_state` returns, as `jax.ShapeDtypeStruct`s."""
        shapes = jax.eval_shape(agent.init, key)
        return jax.tree.map(_placed_shape, shapes, self.state_shardings(shapes))

    def batch_shapes(self, shapes: Trajectory) -> Trajectory:
        """Returns a slot's trajectory as `place_batch` returns it, as `jax.ShapeDtypeStruct`s."""
        without_state = dataclasses.replace(shapes, agent_state=())
        steps = jax.tree.map(lambda leaf: _placed_shape(leaf, self.rows), without_state)
        state = jax.tree.map(lambda leaf: _placed_shape(leaf, self.leading_rows), shapes.agent_state)
        return dataclasses.replace(steps, agent_state=state)


def _placed_shape(leaf: Any, sharding: jax.sharding.Sharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding, weak_type=leaf.weak_type)


def _apart(state: LearnerState) -> LearnerState:
    """Returns the state with a separate array in each leaf, since no array may be donated twice.

    Target networks start as the same arrays as the networks.
    """
    seen: set[int] = set()

    def own(leaf: Any) -> Any:
        if id(leaf) in seen:
            return leaf.copy()
        seen.add(id(leaf))
        return leaf

    return jax.tree.map(own, state)


def as_trajectory(slot: SlotViews) -> Trajectory:
    """Returns a slot's numpy arrays as a trajectory of single frames, without `agent_state`."""
    names = ("action", "reward", "terminated", "truncated", "valid", "policy_version", "extras")
    arrays: dict[str, Any] = {name: getattr(slot, name) for name in names}
    return Trajectory(observation=slot.frames, is_first=slot.is_first_frames, **arrays)  # pyright: ignore[reportArgumentType]
