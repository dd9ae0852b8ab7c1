"""The inference server: a thread that acts for whichever lanes are ready, reading and writing the slots in place."""

import dataclasses
import time
from collections.abc import Callable, Sequence
from functools import lru_cache, partial

import jax
import numpy as np

from agents.api import AgentState, AnyAgent, Array, Params
from envpool_bridge.errors import UserError
from envpool_bridge.pool import EnvPool
from envpool_bridge.slot_views import ActRows, blank_window
from envpool_bridge.specs import LeafSpec
from envpool_bridge.tree import map_leaves, take
from jaxsrl.inference.act import act_in_slot, fetched, make_act, row_keys, take_rows
from jaxsrl.inference.batching import Group, Request, compiled_sizes, group_requests
from jaxsrl.learner.mesh import Device
from jaxsrl.params.store import ParamsStore

_WAIT_SECONDS = 0.2
_KEPT_KEYS = 256  # sets of lanes that shared a call: as many as eight lanes have


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
        agent: AnyAgent,
        store: ParamsStore,
        run_key: Array,
        device: Device,
        merge: bool,
        first_row: int = 0,
        agent_state: AgentState | None = None,
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
            agent_state: [R, ...] a leaf, of the pool's rows as a resumed run goes on; None for the agent's initial one.

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
            state = agent.initial_agent_state(pool.num_rows) if agent_state is None else agent_state
            self._agent_states = [
                jax.device_put(take_rows(state, pool.shape.lane_rows(lane)), device) for lane in lanes
            ]
            self._all_keys = row_keys(run_key, range(first_row, first_row + pool.num_rows))
        # Gathering them is a call of its own, several times as long as the one that acts.
        self._keys_of = lru_cache(_KEPT_KEYS)(self._gather_keys)
        if merge and jax.tree.leaves(self._agent_states):
            raise UserError(f"agent {agent.name} carries state between steps: use --run.inference-batching lane")

    def warm_up(self, params: Params) -> None:
        """Compiles every call size, so that nothing compiles while environments wait; `params` are placed as the store's."""
        for lane in range(self._pool.num_lanes):
            self._keys_of((lane,), self._rows_per_lane)
        sizes = compiled_sizes(self._pool.num_lanes) if self._merge else [1]
        for lanes in sizes:
            rows = lanes * self._rows_per_lane
            observation, is_first = blank_window(self._pool.spec, rows)
            steps = np.zeros(rows, np.uint32)
            keys = self._keys_of(tuple(range(lanes)), rows)
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
        keys = self._keys_of(group.lanes, rows.stop - rows.start)
        steps = np.full(rows.stop - rows.start, first.step, np.uint32)
        acting = self._pool.access.act_rows(slot, t, rows)
        agent_state = act_in_slot(self._act, params, acting, self._agent_states[first.lane], keys, steps, version)
        if len(group.requests) == 1:
            self._agent_states[first.lane] = agent_state

    def _serve_gathered(self, group: Group, version: int, params: Params) -> None:
        shape, size = self._pool.shape, self._rows_per_lane
        total = group.padded_lanes * size
        observation, is_first = blank_window(self._pool.spec, total)
        steps = np.zeros(total, np.uint32)
        gathered: list[tuple[slice, ActRows]] = []
        for number, request in enumerate(group.requests):
            sequence, t = divmod(request.step, shape.rollout_length)
            here, rows = slice(number * size, (number + 1) * size), shape.lane_rows(request.lane)
            acting = self._pool.access.act_rows(self._pool.views[sequence % shape.num_slots], t, rows)
            map_leaves(partial(_write_rows, here), self._pool.spec.observation, observation, acting.observation)
            is_first[..., here] = acting.is_first
            steps[here] = request.step
            gathered.append((here, acting))
        keys = self._keys_of(group.lanes, total)
        action, extras, _ = self._act(params, observation, self._agent_states[0], is_first, keys, steps)
        action, extras = fetched((action, extras))
        for here, acting in gathered:
            acting.write(take(action, here), {name: values[here] for name, values in extras.items()}, version)

    def _gather_keys(self, lanes: tuple[int, ...], total: int) -> Array:
        """[total] typed keys of the lanes' rows, one lane after the other, and of row 0 where a call is padded."""
        shape = self._pool.shape
        ids = np.zeros(total, np.int32)
        for number, lane in enumerate(lanes):
            rows = shape.lane_rows(lane)
            ids[number * self._rows_per_lane : (number + 1) * self._rows_per_lane] = np.arange(rows.start, rows.stop)
        return self._all_keys[ids]


def _write_rows(here: slice, leaf: LeafSpec, target: np.ndarray, values: np.ndarray) -> None:
    """Rows of [R, ...], or of [F, R, ...] where frames are stacked."""
    if target.ndim > 1 + len(leaf.stored_shape):
        target[:, here] = values
    else:
        target[here] = values
