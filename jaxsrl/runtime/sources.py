"""Where the learner's trajectories come from: the pool with its inference server, or a loop in this process."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import jax
import numpy as np

from agents.api import Agent, Array, Params
from envpool_bridge.adapters.rows import EnvSource, EpisodeReset, FirstRows, step_rows
from envpool_bridge.layout import ALIGNMENT, PoolShape, SlotViews, make_layout, view_slots
from envpool_bridge.pool import EnvPool
from envpool_bridge.specs import EnvSpec
from jaxsrl.dataflow.plan import Plan
from jaxsrl.inference.act import make_act, row_keys
from jaxsrl.inference.server import InferenceServer
from jaxsrl.params.store import ParamsStore
from jaxsrl.runtime.lifecycle import Lifecycle

_WAIT_SECONDS = 0.2


class TrajectorySource(Protocol):
    """Full slots, in order of sequence."""

    def start(self, reset: EpisodeReset, params: Params) -> None:
        """Begins to collect; `params` serve to compile."""
        ...

    def acquire(self, timeout_seconds: float) -> int | None:
        """The next full slot's sequence, or None."""
        ...

    def slot(self, sequence: int) -> SlotViews:
        """The leased slot."""
        ...

    def release(self, sequence: int) -> None:
        """Gives the slot back."""
        ...

    def params_published(self) -> None:
        """New parameters are in the store."""
        ...

    def first_observation(self, should_stop: Callable[[], bool]) -> np.ndarray | None:
        """[B, ...], what the environments show right after `start`; None if the run stops before."""
        ...

    def totals(self) -> Mapping[str, float]:
        """Seconds and counts since the start, by metric name."""
        ...

    def close(self) -> None:
        """Stops and frees everything; idempotent."""
        ...


class PoolSource:
    """Environment processes and an inference thread."""

    def __init__(
        self,
        source: EnvSource,
        spec: EnvSpec,
        plan: Plan,
        agent: Agent,
        seed: int,
        first_sequence: int,
        lifecycle: Lifecycle,
    ) -> None:
        """Reserves memory and begins to start the workers; refuses what cannot run."""
        self._agent, self._lifecycle, self._plan = agent, lifecycle, plan
        self._first = first_sequence
        self._server: InferenceServer | None = None
        self._pool = EnvPool(
            source, plan.shape, extras=agent.extras, run_seed=seed, first_sequence=first_sequence, spec=spec
        )

    def serve_with(self, store: ParamsStore, run_key: Array) -> None:
        """Tells where parameters and keys come from; before `start`."""
        device = jax.local_devices()[self._plan.inference_device]
        self._server = InferenceServer(self._pool, self._agent, store, run_key, device, self._plan.merge_lanes)

    def start(self, reset: EpisodeReset, params: Params) -> None:
        """Starts workers and the inference thread."""
        if self._server is None:
            raise RuntimeError("serve_with comes before start")
        server = self._server
        self._pool.start(split_reset(reset, self._plan.shape))
        server.warm_up(params)
        self._lifecycle.start_thread("inference", lambda: server.run(self._lifecycle.should_stop))

    def acquire(self, timeout_seconds: float) -> int | None:
        """The next full slot's sequence, or None; raises what environments raised."""
        return self._pool.acquire(timeout_seconds)

    def slot(self, sequence: int) -> SlotViews:
        """The leased slot, in shared memory."""
        return self._pool.views[sequence % self._plan.shape.num_slots]

    def release(self, sequence: int) -> None:
        """Gives the slot back to the environments."""
        self._pool.release(sequence)

    def first_observation(self, should_stop: Callable[[], bool]) -> np.ndarray | None:
        """A copy of the first slot's first observation, once every worker has written it."""
        while not self._pool.wait_begun(_WAIT_SECONDS):
            if should_stop():
                return None
        return self.slot(self._first).observation[0].copy()

    def params_published(self) -> None:
        """Wakes the inference thread."""
        self._pool.wake()

    def totals(self) -> Mapping[str, float]:
        """Seconds waited and calls made."""
        stats = self._server.stats if self._server is not None else None
        return {
            "environment/wait_seconds": self._pool.environments_waited_seconds / self._plan.shape.num_workers,
            "inference/wait_seconds": self._pool.acting_waited_seconds,
            "learner/wait_seconds": self._pool.learning_waited_seconds,
            "inference/busy_seconds": stats.busy_seconds if stats else 0.0,
            "inference/calls": stats.calls if stats else 0,
            "inference/rows": stats.rows if stats else 0,
        }

    def close(self) -> None:
        """Stops workers; the inference thread must have stopped."""
        self._pool.close()


class SerialSource:
    """All rows as one lane, stepped in this process when the learner asks for the next slot."""

    def __init__(
        self, source: EnvSource, spec: EnvSpec, plan: Plan, agent: Agent, seed: int, first_sequence: int
    ) -> None:
        """Makes the environments here."""
        shape = plan.shape
        layout = make_layout(spec, shape, agent.extras)
        memory = np.zeros(layout.total_bytes + ALIGNMENT, np.uint8)
        start = -memory.ctypes.data % ALIGNMENT
        self._slots = view_slots(layout, memory.data[start:])
        self._rows = source.make_rows(range(shape.num_rows), seed, False)
        self._shape, self._agent = shape, agent
        self._next = first_sequence
        self._first = True
        self._act = make_act(agent)
        self._agent_state = agent.initial_agent_state(shape.num_rows)
        self._store: ParamsStore | None = None
        self._keys: Array | None = None
        self._steps = 0

    def serve_with(self, store: ParamsStore, run_key: Array) -> None:
        """Tells where parameters and keys come from; before `start`."""
        self._store, self._keys = store, row_keys(run_key, range(self._shape.num_rows))

    def start(self, reset: EpisodeReset, params: Params) -> None:
        """Resets the environments."""
        slot = self.slot(self._next)
        self._rows.reset(reset, FirstRows(slot.observation[0], slot.is_first[0]))

    def acquire(self, timeout_seconds: float) -> int | None:
        """Collects the next slot; None if its parameters are not published yet."""
        if self._store is None or self._keys is None:
            raise RuntimeError("serve_with comes before acquire")
        acting = self._store.acting(self._next, 0.0)
        if acting is None:
            return None
        slot = self.slot(self._next)
        if not self._first:
            before = self.slot(self._next - 1)
            slot.observation[0], slot.is_first[0] = before.observation[-1], before.is_first[-1]
        self._first = False
        whole = slice(0, self._shape.rollout_length)
        step_rows(slot, whole).prepare()
        for t in range(self._shape.rollout_length):
            self._step(slot, t, self._keys, *acting)
        self._rows.verify(slot.observation[1:], slot.reward)
        self._next += 1
        return self._next - 1

    def slot(self, sequence: int) -> SlotViews:
        """The slot of a sequence."""
        return self._slots[sequence % self._shape.num_slots]

    def release(self, sequence: int) -> None:
        """Nothing to do: the next `acquire` overwrites an older slot."""

    def first_observation(self, should_stop: Callable[[], bool]) -> np.ndarray | None:
        """A copy of the first slot's first observation."""
        return self.slot(self._next).observation[0].copy()

    def params_published(self) -> None:
        """Nothing to do: `acquire` looks for itself."""

    def totals(self) -> Mapping[str, float]:
        """Counts; in turn, nobody waits."""
        return {"inference/calls": self._steps, "inference/rows": self._steps * self._shape.num_rows}

    def close(self) -> None:
        """Closes the environments."""
        self._rows.close()

    def _step(self, slot: SlotViews, t: int, keys: Array, version: int, params: Params) -> None:
        steps = np.full(self._shape.num_rows, self._next * self._shape.rollout_length + t, np.uint32)
        action, extras, self._agent_state = self._act(
            params, slot.observation[t], self._agent_state, slot.is_first[t], keys, steps
        )
        action, extras = jax.device_get((action, extras))
        slot.action[t] = action
        for name, values in extras.items():
            slot.extras[name][t] = values
        slot.policy_version[t] = version
        self._rows.step(slot.action[t], step_rows(slot, t))
        self._steps += 1


def split_reset(reset: EpisodeReset, shape: PoolShape) -> Sequence[EpisodeReset]:
    """One reset a part, in row order."""
    parts = [shape.part_rows(part) for part in range(shape.num_parts)]
    return [EpisodeReset(reset.episodes[rows], reset.actions[rows]) for rows in parts]
