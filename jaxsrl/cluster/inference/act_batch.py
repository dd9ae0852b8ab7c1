"""Calls of an agent's `act` for lanes that asked from other nodes, with what their rows remember."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from agents.api import Params
from envpool_bridge.errors import UserError
from envpool_bridge.spec.tree import map_leaves
from jaxsrl.cluster.inference.messages import ActingMessages, Request
from jaxsrl.collect.collector import CollectorConfig
from jaxsrl.collect.inference import batching
from jaxsrl.collect.inference.act import LaneInputs, act_for_lanes, compile_act, make_act, row_keys, wrap_step
from jaxsrl.machine.devices import Device


class ActingCalls:
    """Acts for some lanes of a run. One thread.

    Args:
        config: Configuration of the run's sources; its key and environments are not looked at.
        key: the run's key of actions.
        lanes: numbered over all hosts.
        messages: Messages of those requests.
        device: Device that acts.

    Raises:
        UserError: lanes are merged for an agent that remembers.

    Attributes:
        rows_per_lane: R.
    """

    def __init__(
        self, config: CollectorConfig, key: Any, lanes: range, messages: ActingMessages, device: Device
    ) -> None:
        if config.plan.merge_lanes and messages.remembers:
            raise UserError(f"agent {config.agent.name} carries state between steps: use --inference.batching lane")
        self.rows_per_lane = size = config.plan.shape.rows_per_lane
        self._spec, self._lanes, self._messages, self._device = config.spec, lanes, messages, device
        self._last = config.plan.shape.rollout_length - 1
        self._act = make_act(config.agent, platform=device.platform)
        self._states: dict[int, Any] = {}  # by lane; only of agents that remember
        self._nothing = None if messages.remembers else config.agent.initial_agent_state(size)
        self._keys = row_keys(jax.device_put(key, device), range(lanes.start * size, lanes.stop * size))

    def warm_up(self, params: Params) -> None:
        """Compiles every call size, so that nothing compiles while environments wait."""
        merged = not self._messages.remembers
        for lanes in batching.compiled_sizes(len(self._lanes)) if merged else [1]:
            state = self._nothing
            if state is None:
                state = jax.device_put(self._messages.blank_state(), self._device)
            rows = lanes * self.rows_per_lane
            compile_act(self._act, params, self._spec, state, self._keys, rows, selects_keys=True)

    def act(self, params: Params, version: int, requests: Sequence[Request], merge: bool) -> list[np.ndarray]:
        """Acts for the requests in one call; the answers, packed.

        Args:
            params: Parameters of that version.
            version: Version of the parameters.
            requests: Requests of different lanes; one unless lanes are merged.
            merge: whether the call is padded to a size that was compiled.
        """
        if not merge:
            (request,) = requests
            return [self._act_for_lane(params, version, request)]
        return self._act_for_lanes(params, version, requests)

    def _act_for_lane(self, params: Params, version: int, request: Request) -> np.ndarray:
        begin = self._first_key(request)
        rows = np.arange(begin, begin + self.rows_per_lane, dtype=np.uint32)
        steps = np.full(self.rows_per_lane, wrap_step(request.step), np.uint32)
        action, extras, after = self._act(
            params, request.observation, self._state_before(request), request.is_first, self._keys, steps, rows
        )
        action, extras = jax.device_get((action, extras))
        ends = request.step % (self._last + 1) == self._last
        if self._messages.remembers:
            self._states[request.lane] = after
        state = jax.device_get(after) if ends and self._messages.remembers else None
        return self._messages.pack_answer(version, request.step, action, extras, state)

    def _state_before(self, request: Request) -> Any:
        if self._nothing is not None:
            return self._nothing
        if request.agent_state is not None:
            return jax.device_put(map_leaves(np.array, request.agent_state), self._device)
        if request.lane not in self._states:
            raise RuntimeError(f"lane {request.lane} asked for step {request.step} without what it remembers")
        return self._states[request.lane]

    def _act_for_lanes(self, params: Params, version: int, requests: Sequence[Request]) -> list[np.ndarray]:
        padded = next(number for number in batching.compiled_sizes(len(self._lanes)) if number >= len(requests))
        lanes = [
            LaneInputs(request.observation, request.is_first, request.step, self._first_key(request))
            for request in requests
        ]
        results = act_for_lanes(self._act, params, lanes, padded, self._spec, self._nothing, self._keys)
        return [
            self._messages.pack_answer(version, request.step, action, extras, None)
            for request, (action, extras) in zip(requests, results, strict=True)
        ]

    def _first_key(self, request: Request) -> int:
        return (request.lane - self._lanes.start) * self.rows_per_lane
