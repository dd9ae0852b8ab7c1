"""Collector whose workers act: each steps its environments and runs its own copy of the policy."""

from collections.abc import Callable, Mapping
from functools import partial

import cloudpickle
import jax
import numpy as np

from agents.api import Params
from envpool_bridge.envs.fingerprint import read_modules
from envpool_bridge.envs.protocol import EpisodeReset
from envpool_bridge.shm.slots import SlotViews
from envpool_bridge.spec.tree import Tree, map_leaves
from envpool_bridge.worker.policy import LocalPolicySpec, check_shape
from jaxsrl.collect.acting_agent import acting_agent, layout_of, params_shapes, read_jax_settings
from jaxsrl.collect.actors.counters import ActorCounters
from jaxsrl.collect.actors.factory import ActorFactory
from jaxsrl.collect.collector import CollectorConfig, describe_lanes, open_pool, split_reset, supervision_metrics
from jaxsrl.collect.params.shared_memory import SharedParams

_WAIT_SECONDS = 0.2


class ActorCollector:
    """Pool whose workers act. They receive parameters and return trajectories through shared memory.

    The constructor reserves memory and starts to launch the actors.

    Args:
        config: arguments of every collector.
        replica: index of the plan's environment replica that this collector serves.

    Raises:
        UserError: If the plan's workers share lanes, or the environment cannot be sent to them.
    """

    def __init__(self, config: CollectorConfig, replica: int = 0) -> None:
        plan = config.plan
        check_shape(plan.shape)
        self._shape, self._first = plan.shape, config.first_sequence
        self._first_row = replica * plan.shape.num_rows
        self._factory, self._modules = cloudpickle.dumps(_factory(config)), read_modules(config.agent)
        self._params, self._max_policy_lag = SharedParams(layout_of(params_shapes(config.agent))), plan.max_policy_lag
        self._counters = ActorCounters(plan.shape.num_workers)
        try:
            self._pool = open_pool(config, replica)
        except BaseException:
            self._params.close()
            self._counters.close()
            raise

    def publish(self, version: int, params: Params) -> None:
        """Copies the parameters into shared memory and wakes the actors that wait for them."""
        self._params.publish(version, jax.device_get(jax.tree.leaves(params)))
        self._pool.wake_workers()

    def start(self, reset: EpisodeReset) -> None:
        """Starts the actors, which compile, reset, and act with the published parameters."""
        descriptors = (self._params.descriptor, self._counters.descriptor)
        policy = LocalPolicySpec(self._factory, descriptors, self._may_act, self._modules)
        self._pool.start(split_reset(reset, self._shape, self._first_row), policy)

    def _may_act(self, sequence: int) -> bool:
        return self._params.acting_version(sequence, self._max_policy_lag) is not None

    def acquire(self, timeout_seconds: float) -> int | None:
        return self._pool.acquire(timeout_seconds)

    def slots(self, sequence: int) -> list[SlotViews]:
        """Returns the leased slot, in shared memory."""
        return [self._pool.views[sequence % self._shape.num_slots]]

    def slot_memory(self, sequence: int) -> np.ndarray:
        """Returns the memory of the leased slot, [slot_bytes] uint8, to send it as a whole."""
        return self._pool.slot_memory(sequence)

    def release(self, sequence: int) -> None:
        """Returns the slot to the actors."""
        self._pool.release(sequence)

    def set_stage(self, stage: int) -> None:
        self._pool.set_stage(stage)

    def drop(self, sequence: int) -> None:
        """Raises: a plan that drops trajectories has an inference server."""
        raise RuntimeError("a plan with actors trains on every slot")

    def first_observation(self, should_stop: Callable[[], bool]) -> Tree | None:
        """Returns a copy of the first slot's first observation after every actor has written it."""
        while not self._pool.wait_started(_WAIT_SECONDS):
            if should_stop():
                return None
        return map_leaves(lambda array: array[0].copy(), self.slots(self._first)[0].observation)

    def totals(self) -> Mapping[str, float]:
        """Returns seconds waited and calls made; seconds of actors are means over actors."""
        acted, actors = self._counters.totals(), self._shape.num_workers
        return {
            "env/wait_seconds": self._pool.env_wait_seconds / actors,
            "learner/wait_seconds": self._pool.learner_wait_seconds,
            "inference/busy_seconds": acted.busy_seconds / actors,
            "inference/calls": float(acted.calls),
            "inference/rows": float(acted.rows),
            **supervision_metrics([self._pool.supervision]),
        }

    def waits(self) -> list[str]:
        missing = partial(self._params.missing, max_policy_lag=self._max_policy_lag)
        return [describe_lanes(self._pool, missing, "an actor")]

    def close(self) -> None:
        """Stops the actors and frees the memory; idempotent."""
        self._pool.close()
        self._params.close()
        self._counters.close()


def _factory(config: CollectorConfig) -> ActorFactory:
    key = config.act_key
    return ActorFactory(
        agent=cloudpickle.dumps(acting_agent(config.agent)),
        max_policy_lag=config.plan.max_policy_lag,
        key_data=np.asarray(jax.random.key_data(key)),
        key_impl=str(jax.random.key_impl(key)),
        agent_state=config.agent_state,
        jax_settings=read_jax_settings(),
    )
