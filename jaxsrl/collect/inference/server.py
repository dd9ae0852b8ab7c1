"""Inference server: a thread that acts for ready lanes, reading and writing the slots in place."""

import time
from collections.abc import Callable, Sequence

import jax
import numpy as np

from agents.api import AgentState, AnyAgent, Array, Params
from envpool_bridge.errors import UserError
from envpool_bridge.pool import EnvPool
from envpool_bridge.shm.slots import ActRows
from jaxsrl.collect.inference.act import (
    ActOnRows,
    InferenceStats,
    LaneInputs,
    act_for_lanes,
    act_in_slot,
    compile_act,
    make_act,
    take_rows,
    wrap_step,
)
from jaxsrl.collect.inference.batching import Group, Request, compiled_sizes, group_requests
from jaxsrl.collect.params.store import ParamsStore
from jaxsrl.machine.devices import Device

_WAIT_SECONDS = 0.2


class InferenceServer:
    """Server that acts for the pool's lanes. Thread-safety: `run` in one thread; `stats` may be read from any.

    Everything that calls need is placed on `device`, so that no call uses another device.

    Args:
        pool: pool whose lanes are served.
        agent: agent whose `act` is called.
        store: source of parameters.
        keys: [R] typed keys (`row_keys`) of the pool's rows; folded with the step for every action.
        device: device that computes.
        merge: whether lanes that are ready together share a call.
        agent_state: [R, ...] a leaf, recurrent state of the pool's rows in a resumed run; None for the agent's initial state.
        act: result of `make_act`, shared by servers to trace it once; None to make one.

    Raises:
        UserError: merging was requested for an agent with recurrent state.
    """

    def __init__(
        self,
        pool: EnvPool,
        agent: AnyAgent,
        store: ParamsStore,
        keys: Array,
        device: Device,
        merge: bool,
        agent_state: AgentState | None = None,
        act: ActOnRows | None = None,
    ) -> None:
        self.stats = InferenceStats()
        self._pool = pool
        self._store = store
        self._device = device
        self._merge = merge
        self._act = act or make_act(agent, platform=device.platform)
        self._rows_per_lane = pool.shape.rows_per_lane
        with jax.default_device(device):
            state = agent.initial_agent_state(pool.num_rows) if agent_state is None else agent_state
        state = jax.device_put(state, device)  # an eager slice of an uncommitted array would move to the default device
        lanes = [pool.shape.lane_rows(lane) for lane in range(pool.num_lanes)]
        self._agent_states = [take_rows(state, rows) for rows in lanes]
        self._keys = jax.device_put(keys, device)
        if merge and jax.tree.leaves(self._agent_states):
            raise UserError(f"agent {agent.name} carries state between steps: use --inference.batching lane")

    def warm_up(self, params: Params) -> None:
        """Compiles every call size, so that no call compiles while environments wait.

        Args:
            params: parameters on the server's device, like those of the store.
        """
        for lanes in compiled_sizes(self._pool.num_lanes) if self._merge else [1]:
            size, state = lanes * self._rows_per_lane, self._agent_states[0]
            compile_act(self._act, params, self._pool.spec, state, self._keys, size, selects_keys=True)

    def run(self, should_stop: Callable[[], bool]) -> None:
        """Serves until `should_stop()`; raises the errors of environments."""
        while not should_stop():
            lanes = self._pool.wait_ready(_WAIT_SECONDS, self._store.may_act)
            if not lanes:
                continue
            start = time.perf_counter()
            self._serve(lanes)
            self.stats.busy_seconds += time.perf_counter() - start

    def _serve(self, lanes: Sequence[int]) -> None:
        length = self._pool.shape.rollout_length
        # Lanes may be in slots of different sequences, which need different parameters. They cannot share a call.
        acting: dict[int, Params] = {}
        requests: dict[int, list[Request]] = {}
        for lane in lanes:
            sequence, t = self._pool.position(lane)
            acting_params = self._store.acting(sequence, _WAIT_SECONDS)
            if acting_params is None:
                continue  # still ready: the next wait returns it again
            version, acting[version] = acting_params
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
        steps = np.full(rows.stop - rows.start, wrap_step(first.step), np.uint32)
        key_rows = np.arange(rows.start, rows.stop, dtype=np.uint32)
        acting, state = self._pool.access.act_rows(slot, t, rows), self._agent_states[first.lane]
        agent_state = act_in_slot(self._act, params, acting, state, self._keys, steps, version, key_rows)
        if len(group.requests) == 1:
            self._agent_states[first.lane] = agent_state

    def _serve_gathered(self, group: Group, version: int, params: Params) -> None:
        shape = self._pool.shape
        gathered: list[ActRows] = []
        lanes: list[LaneInputs] = []
        for request in group.requests:
            sequence, t = divmod(request.step, shape.rollout_length)
            rows = shape.lane_rows(request.lane)
            acting = self._pool.access.act_rows(self._pool.views[sequence % shape.num_slots], t, rows)
            gathered.append(acting)
            lanes.append(LaneInputs(acting.observation, acting.is_first, request.step, rows.start))
        spec, state = self._pool.spec, self._agent_states[0]
        results = act_for_lanes(self._act, params, lanes, group.padded_lanes, spec, state, self._keys)
        for acting, (action, extras) in zip(gathered, results, strict=True):
            acting.write(action, extras, version)
