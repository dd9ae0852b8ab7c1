"""Policy of an actor: the agent's `act` for the actor's own rows, with parameters from shared memory."""

import dataclasses
import os
import pickle
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from agents.api import AgentState, AnyAgent, Array, Params
from envpool_bridge.shm.layout import SlotLayout
from envpool_bridge.shm.slots import ActRows
from envpool_bridge.spec.specs import EnvSpec
from jaxsrl.collect.acting_agent import layout_of, params_shapes, use_jax_settings
from jaxsrl.collect.actors.counters import ActorCounters
from jaxsrl.collect.actors.factory import ActorFactory
from jaxsrl.collect.inference.act import act_in_slot, compile_act, make_act, row_keys, take_rows, wrap_step
from jaxsrl.collect.params.shared_memory import SharedParams

_STORED_VERSIONS = 2  # parts of one actor may be in slots of two sequences


class ActorParams:
    """Parameters in the agent's structure, copied from shared memory once per version. Thread-safety: one thread.

    Args:
        shared: parameters in shared memory.
        structure: PyTreeDef of the parameters.
        max_policy_lag: decides which version acts.
    """

    def __init__(self, shared: SharedParams, structure: Any, max_policy_lag: int) -> None:
        self._shared, self._structure, self._lag = shared, structure, max_policy_lag
        self._stored: OrderedDict[int, Params] = OrderedDict()

    def may_act(self, sequence: int) -> bool:
        """Returns whether the parameters for this slot sequence are published."""
        return self._shared.acting_version(sequence, self._lag) is not None

    def acting(self, sequence: int) -> tuple[int, Params] | None:
        """Returns the version that acts for this slot sequence and its parameters; None if they are not published."""
        version = self._shared.acting_version(sequence, self._lag)
        if version in self._stored:
            return version, self._stored[version]
        latest = self._shared.read_acting(sequence, self._lag)
        if latest is None:
            return None
        version, leaves = latest
        # Nothing else uses the copy: jax may alias it.
        self._stored[version] = jax.device_put(jax.tree.unflatten(self._structure, leaves))
        while len(self._stored) > _STORED_VERSIONS:
            self._stored.popitem(last=False)
        return version, self._stored[version]


@dataclasses.dataclass
class _ActorPart:
    """Keys and recurrent state of one part."""

    keys: Array
    agent_state: AgentState


class ActorPolicy:
    """Policy of one actor's parts; an envpool_bridge.worker.policy.LocalPolicy. Thread-safety: the actor's thread only.

    Args:
        agent: agent whose `act` is called.
        params: source of parameters.
        run_key: key folded with row and step for every action.
        parts: rows of the run, by part.
        rollout_length: T, steps of a slot.
        counters: counters of calls.
        actor: index in `counters`.
        agent_state: [B, ...] a leaf, recurrent state of all rows of a resumed run; None for the agent's initial state.
    """

    def __init__(
        self,
        agent: AnyAgent,
        params: ActorParams,
        run_key: Array,
        parts: Mapping[int, range],
        rollout_length: int,
        counters: ActorCounters,
        actor: int,
        agent_state: AgentState | None = None,
    ) -> None:
        self._act = make_act(agent)
        self._params, self._rollout_length = params, rollout_length
        self._counters, self._actor = counters, actor
        self._parts = {
            part: _ActorPart(
                row_keys(run_key, rows),
                agent.initial_agent_state(len(rows))
                if agent_state is None
                else jax.device_put(take_rows(agent_state, slice(rows.start, rows.stop))),
            )
            for part, rows in parts.items()
        }

    def warm_up(self, params: Params, spec: EnvSpec) -> None:
        """Compiles with any parameters, so that no call compiles while the learner waits. Actions are discarded."""
        for part in self._parts.values():
            compile_act(self._act, params, spec, part.agent_state, part.keys, len(part.keys), selects_keys=False)

    def may_act(self, sequence: int) -> bool:
        """Returns whether the parameters for this slot sequence are published."""
        return self._params.may_act(sequence)

    def act(self, part: int, step: int, rows: ActRows) -> bool:
        """Writes actions, extras and version; returns False if the parameters for the step's slot are not published yet."""
        start = time.perf_counter()
        acting = self._params.acting(step // self._rollout_length)
        if acting is None:
            return False
        version, params = acting
        own_part = self._parts[part]
        num_rows = len(rows.policy_version)
        steps = np.full(num_rows, wrap_step(step), np.uint32)
        own_part.agent_state = act_in_slot(self._act, params, rows, own_part.agent_state, own_part.keys, steps, version)
        self._counters.count(self._actor, num_rows, time.perf_counter() - start)
        return True


def start_jax(actor: int) -> None:
    """Starts jax's CPU client with a pool of one thread.

    The client takes as many threads as it sees cores, and splits programs of a few microseconds among them. A call for 64 rows
    measured 110 us with two threads and 52 us with one. No setting limits the threads. Therefore the actor's affinity is
    one core while the client starts. The client's threads stay on it; the calling thread does not.
    """
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {sorted(cores)[actor % len(cores)]})
    try:
        jax.local_devices()
    finally:
        os.sched_setaffinity(0, cores)


def make_policy(
    factory: ActorFactory, layout: SlotLayout, worker: int, parts: Mapping[int, range], descriptors: Sequence[int]
) -> ActorPolicy:
    """Returns the policy of actor `worker`, compiled; `descriptors` are those of SharedParams and of ActorCounters."""
    use_jax_settings(factory.jax_settings)
    start_jax(worker)
    agent = pickle.loads(factory.agent)
    shapes = params_shapes(agent)
    params_descriptor, counters_descriptor = descriptors
    shared = SharedParams(layout_of(shapes), params_descriptor)
    params = ActorParams(shared, jax.tree.structure(shapes), factory.max_policy_lag)
    counters = ActorCounters(layout.shape.num_workers, counters_descriptor)
    run_key = jax.random.wrap_key_data(jax.numpy.asarray(factory.key_data), impl=factory.key_impl)
    policy = ActorPolicy(
        agent, params, run_key, parts, layout.shape.rollout_length, counters, worker, factory.agent_state
    )
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
    policy.warm_up(jax.device_put(zeros), layout.spec)
    return policy
