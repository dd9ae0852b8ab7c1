"""Inference server: a thread that acts for ready lanes, reading and writing the slots in place."""

import dataclasses
import time
from collections.abc import Callable, Sequence
from functools import partial

import jax
import numpy as np

from agents.api import AgentState, AnyAgent, Array, Params
from envpool_bridge.errors import UserError
from envpool_bridge.pool import EnvPool
from envpool_bridge.shm.slots import ActRows, blank_window
from envpool_bridge.spec.specs import LeafSpec
from envpool_bridge.spec.tree import map_leaves, take
from jaxsrl.collect.inference.act import ActOnRows, act_in_slot, fetch, make_act, take_rows, wrap_step
from jaxsrl.collect.inference.batching import Group, Request, compiled_sizes, group_requests
from jaxsrl.collect.params.store import ParamsStore
from jaxsrl.machine.devices import Device

_WAIT_SECONDS = 0.2


@dataclasses.dataclass
class InferenceStats:
    """Totals since the start. Written by the server's thread only.

    Attributes:
        calls: calls of the jitted function.
        rows: rows acted for.
        busy_seconds: time from picking ready lanes to posting their actions.
    """

    calls: int = 0
    rows: int = 0
    busy_seconds: float = 0.0


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
            size = lanes * self._rows_per_lane
            observation, is_first = blank_window(self._pool.spec, size)
            steps = rows = np.zeros(size, np.uint32)
            state = self._agent_states[0]
            for _ in range(2):  # the state that a call returns may differ in kind from the initial one
                _, _, state = jax.block_until_ready(
                    self._act(params, observation, state, is_first, self._keys, steps, rows)
                )

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
        shape, size = self._pool.shape, self._rows_per_lane
        total = group.padded_lanes * size
        observation, is_first = blank_window(self._pool.spec, total)
        steps, key_rows = np.zeros(total, np.uint32), np.zeros(total, np.uint32)  # row 0 where the call is padded
        gathered: list[tuple[slice, ActRows]] = []
        for number, request in enumerate(group.requests):
            sequence, t = divmod(request.step, shape.rollout_length)
            here, rows = slice(number * size, (number + 1) * size), shape.lane_rows(request.lane)
            acting = self._pool.access.act_rows(self._pool.views[sequence % shape.num_slots], t, rows)
            map_leaves(partial(_write_rows, here), self._pool.spec.observation, observation, acting.observation)
            is_first[..., here] = acting.is_first
            steps[here], key_rows[here] = wrap_step(request.step), np.arange(rows.start, rows.stop)
            gathered.append((here, acting))
        action, extras, _ = self._act(params, observation, self._agent_states[0], is_first, self._keys, steps, key_rows)
        action, extras = fetch((action, extras))
        for here, acting in gathered:
            acting.write(take(action, here), {name: values[here] for name, values in extras.items()}, version)


def _write_rows(here: slice, leaf: LeafSpec, target: np.ndarray, values: np.ndarray) -> None:
    """Writes rows of [R, ...], or of [F, R, ...] for stacked frames."""
    if target.ndim > 1 + len(leaf.stored_shape):
        target[:, here] = values
    else:
        target[here] = values
