"""The inference server: a thread that acts for whichever lanes are ready, reading and writing the slots in place."""

import dataclasses
import time
from collections.abc import Callable, Sequence

import jax
import numpy as np

from agents.api import Agent, Array, Params
from envpool_bridge.errors import UserError
from envpool_bridge.pool import EnvPool
from jaxsrl.inference.act import make_act, row_keys
from jaxsrl.inference.batching import Group, Request, compiled_sizes, group_requests
from jaxsrl.learner.mesh import Device
from jaxsrl.params.store import ParamsStore

_WAIT_SECONDS = 0.2


@dataclasses.dataclass
class InferenceStats:
    """Totals since the start. Written by the server's thread alone.

    Attributes:
        calls: of the jitted function.
        rows: acted for.
        busy_seconds: from picking ready lanes to posting their actions.
    """

    calls: int = 0
    rows: int = 0
    busy_seconds: float = 0.0


class InferenceServer:
    """Acts for the pool's lanes. Thread-safety: `run` in one thread; `stats` may be read from any."""

    def __init__(
        self,
        pool: EnvPool,
        agent: Agent,
        store: ParamsStore,
        run_key: Array,
        device: Device,
        merge: bool,
        first_row: int = 0,
    ) -> None:
        """Prepares to serve.

        Args:
            pool: whose lanes to serve.
            agent: whose `act` to call.
            store: where parameters come from.
            run_key: folded with row and step for every action.
            device: where to compute.
            merge: whether lanes that are ready together share a call.
            first_row: of the run, that the pool's rows begin with.

        Raises:
            UserError: merging was asked for an agent that carries state from step to step.
        """
        self.stats = InferenceStats()
        self._pool = pool
        self._store = store
        self._device = device
        self._merge = merge
        self._act = make_act(agent)
        self._rows_per_lane = pool.shape.rows_per_lane
        lanes = range(pool.num_lanes)
        with jax.default_device(device):
            self._agent_states = [agent.initial_agent_state(self._rows_per_lane) for _ in lanes]
            keys = row_keys(run_key, range(first_row, first_row + pool.num_rows))
            self._lane_keys = [keys[pool.shape.lane_rows(lane)] for lane in lanes]
            self._all_keys = keys
        if merge and jax.tree.leaves(self._agent_states):
            raise UserError(f"agent {agent.name} carries state between steps: use --run.inference-batching lane")

    def warm_up(self, params: Params) -> None:
        """Compiles every call size, so that nothing compiles while environments wait."""
        sizes = compiled_sizes(self._pool.num_lanes) if self._merge else [1]
        slot = self._pool.views[0]
        for lanes in sizes:
            rows = lanes * self._rows_per_lane
            observation = np.zeros_like(slot.observation[0, :rows])
            is_first, steps = np.ones(rows, bool), np.zeros(rows, np.uint32)
            keys = self._lane_keys[0] if lanes == 1 else self._all_keys[:rows]
            jax.block_until_ready(self._act(params, observation, self._agent_states[0], is_first, keys, steps))

    def run(self, should_stop: Callable[[], bool]) -> None:
        """Serves until `should_stop()`; errors of the environments are raised here."""
        with jax.default_device(self._device):
            while not should_stop():
                lanes = self._pool.wait_ready(_WAIT_SECONDS, self._store.may_act)
                if not lanes:
                    continue
                start = time.perf_counter()
                self._serve(lanes)
                self.stats.busy_seconds += time.perf_counter() - start

    def _serve(self, lanes: Sequence[int]) -> None:
        length = self._pool.shape.rollout_length
        # Lanes may be in slots of different sequences, for which different parameters act: they cannot share a call.
        acting: dict[int, Params] = {}
        requests: dict[int, list[Request]] = {}
        for lane in lanes:
            sequence, t = self._pool.position(lane)
            found = self._store.acting(sequence, _WAIT_SECONDS)
            if found is None:
                continue  # still ready: it comes back with the next wait
            version, acting[version] = found
            requests.setdefault(version, []).append(Request(lane, sequence * length + t))
        for version, params in acting.items():
            for group in group_requests(requests[version], self._pool.num_lanes, self._merge):
                if group.contiguous:
                    self._serve_in_place(group, version, params)
                else:
                    self._serve_gathered(group, version, params)
                for request in group.requests:
                    self._pool.post_actions(request.lane)
                self.stats.calls += 1
                self.stats.rows += len(group.requests) * self._rows_per_lane

    def _serve_in_place(self, group: Group, version: int, params: Params) -> None:
        first, last = group.requests[0], group.requests[-1]
        sequence, t = divmod(first.step, self._pool.shape.rollout_length)
        slot = self._pool.views[sequence % self._pool.shape.num_slots]
        rows = slice(self._pool.shape.lane_rows(first.lane).start, self._pool.shape.lane_rows(last.lane).stop)
        keys = self._lane_keys[first.lane] if len(group.requests) == 1 else self._all_keys[rows]
        steps = np.full(rows.stop - rows.start, first.step, np.uint32)
        action, extras, agent_state = self._act(
            params, slot.observation[t, rows], self._agent_states[first.lane], slot.is_first[t, rows], keys, steps
        )
        # Fetching the results also proves that the observations, which may be aliased, have been read.
        action, extras = jax.device_get((action, extras))
        slot.action[t, rows] = action
        for name, values in extras.items():
            slot.extras[name][t, rows] = values
        slot.policy_version[t, rows] = version
        if len(group.requests) == 1:
            self._agent_states[first.lane] = agent_state

    def _serve_gathered(self, group: Group, version: int, params: Params) -> None:
        shape, size = self._pool.shape, self._rows_per_lane
        total = group.padded_lanes * size
        places = [divmod(request.step, shape.rollout_length) for request in group.requests]
        slots = [self._pool.views[sequence % shape.num_slots] for sequence, _ in places]
        observation = np.zeros((total, *slots[0].observation.shape[2:]), slots[0].observation.dtype)
        is_first, steps = np.ones(total, bool), np.zeros(total, np.uint32)
        ids = np.zeros(total, np.int32)
        for index, (request, slot, (_, t)) in enumerate(zip(group.requests, slots, places, strict=True)):
            here, rows = slice(index * size, (index + 1) * size), shape.lane_rows(request.lane)
            observation[here] = slot.observation[t, rows]
            is_first[here] = slot.is_first[t, rows]
            steps[here] = request.step
            ids[here] = np.arange(rows.start, rows.stop)
        action, extras, _ = self._act(params, observation, self._agent_states[0], is_first, self._all_keys[ids], steps)
        action, extras = jax.device_get((action, extras))
        for index, (request, slot, (_, t)) in enumerate(zip(group.requests, slots, places, strict=True)):
            here, rows = slice(index * size, (index + 1) * size), shape.lane_rows(request.lane)
            slot.action[t, rows] = action[here]
            for name, values in extras.items():
                slot.extras[name][t, rows] = values[here]
            slot.policy_version[t, rows] = version
