"""The program of several runs: states and rows of all members, advanced by one dispatch."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from agents.api import Agent, Array, LearnerState
from jaxsrl.checkpoints.store import Arrays
from jaxsrl.device_loop.checkpoint_rows import rows_to_arrays
from jaxsrl.device_loop.collect import DeviceRows
from jaxsrl.device_loop.episode_totals import EpisodeSums, clear_finished
from jaxsrl.device_loop.loop import place_rows
from jaxsrl.device_loop.program import RunKeys, make_advance
from jaxsrl.envs.protocol import JaxEnv
from jaxsrl.learner.finite_updates import SkipCounts
from jaxsrl.learner.mesh import LearnerMesh
from jaxsrl.machine.compiler_options import compiler_options

MakeAgent = Callable[[dict[str, Array]], Agent]
"""Function of float32 scalars by name, the agent's options that differ by member, that returns the agent."""


class MemberStart(NamedTuple):
    """State of a member before its first update in this process.

    Attributes:
        state: learner state.
        keys: Keys of the run.
        saved: arrays of a checkpoint, with the rows; None for a new run.
        values: Values of the agent's options that differ by member.
    """

    state: LearnerState
    keys: RunKeys
    saved: Arrays | None
    values: Mapping[str, float]


class MembersProgram:
    """Owner of the states and rows of N members. Thread-safety: one thread at a time.

    Members are divided among the devices, which do not communicate. The members of a CPU device run one after another within
    the program, so that each computes what a single run computes, bit for bit. Those of an accelerator run as one batch.
    The constructor compiles the program. An accelerator needs a second one for members with different numbers of updates, which
    copies their whole states, replay included, for each update.

    Args:
        make_agent: called once in the program, with each member's values as traced scalars. The agent's initial rows must not
            depend on the values.
        env: environment of every row.
        rollout_length: T.
        starts: Starts of the members.
        devices: Devices of the program.

    Raises:
        UserError: If the rows of a checkpoint are of another environment or agent, or of another number of rows.
    """

    def __init__(
        self,
        make_agent: MakeAgent,
        env: JaxEnv,
        rollout_length: int,
        starts: Sequence[MemberStart],
        devices: Sequence[Any],
    ) -> None:
        self._per_device = -(-len(starts) // len(devices))
        self._devices = devices[: -(-len(starts) // self._per_device)]
        mesh = Mesh(np.array(self._devices), ("member",))
        self._sharding = NamedSharding(mesh, PartitionSpec("member"))
        self._replicated = NamedSharding(mesh, PartitionSpec())
        # Every device has the same number of members; the last ones may be copies, which are not read.
        self._num_members = len(starts)
        self._padded = self._per_device * len(self._devices)
        starts = [*starts, *[starts[-1]] * (self._padded - len(starts))]
        first = LearnerMesh(self._devices[:1])
        self._state: LearnerState = self._stack([start.state for start in starts])
        self._keys: RunKeys = self._stack([start.keys for start in starts])
        self._values: dict[str, jax.Array] = self._stack(
            [{name: np.float32(value) for name, value in start.values.items()} for start in starts]
        )
        agent = make_agent({})
        self._rows: DeviceRows = self._stack(
            [
                place_rows(agent, env, first, start.keys, start.saved, int(start.state.num_updates) * rollout_length)
                for start in starts
            ]
        )
        self._take = jax.jit(lambda tree, index: jax.tree.map(lambda leaf: leaf[index], tree))
        self._clear = jax.jit(clear_finished, donate_argnums=0, out_shardings=self._sharding)
        self._is_batch = _runs_as_batch(self._devices[0])
        self._compile = partial(self._compiled, make_agent, env, rollout_length)
        self._advance = self._compile(self._is_batch)
        self._advance_apart = None if self._is_batch else self._advance

    def advance(self, counts: Mapping[int, int]) -> tuple[dict[str, np.ndarray], SkipCounts, EpisodeSums, float]:
        """Runs updates of each member, and waits for them.

        Args:
            counts: updates by member; those that are missing stay as they are.

        Returns:
            The metrics of each member's last update, and its skipped updates, [N] each. The episodes that finished, [N, B] each.
            The seconds.
        """
        program, updates = self._program(counts)
        start = time.perf_counter()
        self._state, self._rows, metrics, skipped = program(updates, self._state, self._rows, self._keys, self._values)
        jax.block_until_ready((self._state, self._rows, metrics, skipped))
        seconds = time.perf_counter() - start
        episodes: EpisodeSums = jax.device_get(self._rows.episodes)
        if episodes.count.any():
            rows = self._rows
            self._rows = DeviceRows(rows.envs, rows.agent_state, self._clear(rows.episodes))
        return jax.device_get(metrics), jax.device_get(skipped), episodes, seconds

    def _program(self, counts: Mapping[int, int]) -> tuple[Any, jax.Array]:
        """Returns the program for these updates by member, and its first argument."""
        if self._is_batch and len(counts) == self._num_members and len(set(counts.values())) == 1:
            return self._advance, jax.device_put(np.int32(counts[0]), self._replicated)
        if self._advance_apart is None:
            self._advance_apart = self._compile(False)
        updates = np.zeros(self._padded, np.int32)
        for member, count in counts.items():
            updates[member] = count
        return self._advance_apart, jax.device_put(updates, self._sharding)

    def state(self, member: int) -> LearnerState:
        """Returns a copy of the learner state of a member, on its device."""
        return self._member(self._state, member)

    def rows(self, member: int) -> Arrays:
        """Returns the rows of a member by name for a checkpoint."""
        return rows_to_arrays(self._member(self._rows, member))

    def set_state(self, member: int, state: LearnerState) -> None:
        """Replaces the learner state of a member."""
        states = [jax.device_get(self.state(index)) for index in range(self._padded)]
        states[member] = state
        self._state = self._stack(states)

    def _member(self, tree: Any, member: int) -> Any:
        # An index into the whole array would make the devices communicate.
        device, index = self._devices[member // self._per_device], member % self._per_device

        def shard(leaf: jax.Array) -> jax.Array:
            return next(each.data for each in leaf.addressable_shards if each.device == device)

        return self._take(jax.tree.map(shard, tree), np.int32(index))

    def _stack(self, trees: Sequence[Any]) -> Any:
        return jax.device_put(jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees), self._sharding)

    def _compiled(self, make_agent: MakeAgent, env: JaxEnv, rollout_length: int, has_one_count: bool) -> Any:
        """Returns the compiled program, for one number of updates of all members or for one number each."""

        def advance(
            count: Array, state: LearnerState, rows: DeviceRows, keys: RunKeys, values: dict[str, Array]
        ) -> Any:
            return make_advance(env, make_agent(values), rollout_length)(count, state, rows, keys)

        count_axis = None if has_one_count else 0

        def advance_members(*members: Any) -> Any:
            # `vmap` computes batches of matrices, whose sums XLA may order in another way.
            if not self._is_batch:
                return jax.lax.map(lambda member: advance(*member), members)
            # A loop over different counts selects old or new values of everything, and so copies it, in every round.
            return jax.vmap(advance, in_axes=(count_axis, 0, 0, 0, 0))(*members)

        spec = self._sharding.spec
        count_spec = PartitionSpec() if has_one_count else spec
        program = jax.shard_map(
            advance_members,
            mesh=self._sharding.mesh,
            in_specs=(count_spec, spec, spec, spec, spec),
            out_specs=spec,
            check_vma=False,
        )
        ones, where = (
            (np.int32(1), self._replicated) if has_one_count else (np.ones(self._padded, np.int32), self._sharding)
        )
        options = compiler_options(self._devices[0].platform)
        jitted = jax.jit(program, donate_argnums=(1, 2), compiler_options=options)
        return jitted.lower(jax.device_put(ones, where), self._state, self._rows, self._keys, self._values).compile()


def _runs_as_batch(device: Any) -> bool:
    return device.platform != "cpu"
