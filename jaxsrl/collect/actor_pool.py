"""Collector whose workers act: each steps its environments and runs its own copy of the policy."""

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import cloudpickle
import jax
import numpy as np

from agents.api import Agent, AnyAgent, Params
from envpool_bridge.envs.protocol import EpisodeReset
from envpool_bridge.pool import EnvPool, PoolOptions
from envpool_bridge.shm.packed_arrays import ParamsLayout, params_layout
from envpool_bridge.shm.slots import SlotViews
from envpool_bridge.spec.tree import Tree, map_leaves
from envpool_bridge.worker.policy import LocalPolicySpec, check_shape
from jaxsrl.collect.actors.counters import ActorCounters
from jaxsrl.collect.actors.factory import ActorFactory
from jaxsrl.collect.collector import CollectorConfig, describe_lanes, split_reset, supervision_metrics
from jaxsrl.collect.params.shared_memory import SharedParams
from jaxsrl.collect.slot_layout import agent_state_spec
from jaxsrl.machine.lifecycle import Lifecycle
from jaxsrl.plan.fragment import Processes

_WAIT_SECONDS = 0.2
# Settings that change what a program computes: an actor's must be the learner's.
_JAX_SETTINGS = ("jax_enable_x64", "jax_default_matmul_precision", "jax_threefry_partitionable")


class ActorCollector:
    """Pool whose workers act. They receive parameters and return trajectories through shared memory.

    The constructor reserves memory and starts to launch the actors.

    Args:
        config: arguments of every collector.
        lifecycle: lifecycle of the run; this collector starts no thread.
        replica: index of the plan's environment replica that this collector serves.

    Raises:
        UserError: the plan's workers share lanes, or the environment cannot be sent to them.
    """

    def __init__(self, config: CollectorConfig, lifecycle: Lifecycle, replica: int = 0) -> None:
        del lifecycle
        plan, agent = config.plan, config.agent
        check_shape(plan.shape)
        self._shape, self._first = plan.shape, config.first_sequence
        self._first_row = replica * plan.shape.num_rows
        # Only the shapes are needed before the first parameters arrive; any key will do.
        template = jax.eval_shape(agent.init, jax.random.key(0)).params
        layout = params_layout([(leaf.shape, np.dtype(leaf.dtype).name) for leaf in jax.tree.leaves(template)])
        self._factory = cloudpickle.dumps(_factory(config, template, layout))
        placement = plan.environments.placement
        self._params, self._max_policy_lag = SharedParams(layout), plan.max_policy_lag
        self._counters = ActorCounters(plan.shape.num_workers)
        self._closed = False
        try:
            options = PoolOptions(
                run_seed=config.seed,
                first_sequence=config.first_sequence,
                first_row=self._first_row,
                cores=placement.cores if isinstance(placement, Processes) else (),
                supervision=config.supervision,
                journal=config.journal,
                stages=config.stages,
            )
            self._pool = EnvPool(
                config.env_source,
                plan.shape,
                options,
                extras=agent.extras,
                agent_state=agent_state_spec(agent),
                spec=config.spec,
            )
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
        policy = LocalPolicySpec(self._factory, descriptors, self._may_act)
        self._pool.start(split_reset(reset, self._shape, self._first_row), policy)

    def _may_act(self, sequence: int) -> bool:
        return self._params.acting_version(sequence, self._max_policy_lag) is not None

    def acquire(self, timeout_seconds: float) -> int | None:
        """Returns the sequence of the next full slot, or None after the timeout; raises the errors of environments and policies."""
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
        """Sets the stage of resets in the slots that are released from now on."""
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

        def missing(sequence: int) -> str:
            return self._params.missing(sequence, self._max_policy_lag)

        return [describe_lanes(self._pool, missing, "an actor")]

    def close(self) -> None:
        """Stops the actors and frees the memory; idempotent."""
        if self._closed:
            return
        self._closed = True
        self._pool.close()
        self._params.close()
        self._counters.close()


def _without_learning(agent: AnyAgent) -> AnyAgent:
    """Returns the agent without its learning functions, which refer to devices that another process lacks."""
    if isinstance(agent, Agent):
        agent = agent._replace(gradient_steps=None, groups=())
    return agent._replace(init=_raise_no_learner, update=_raise_no_learner)


def _raise_no_learner(*_: Any) -> NoReturn:
    raise TypeError("an actor has no learner: it only acts")


def _factory(config: CollectorConfig, template: Params, layout: ParamsLayout) -> ActorFactory:
    key = config.act_key
    structure = jax.tree.map(lambda leaf: 0, template)
    return ActorFactory(
        agent=cloudpickle.dumps((_without_learning(config.agent), structure)),
        params_layout=layout,
        max_policy_lag=config.plan.max_policy_lag,
        key_data=np.asarray(jax.random.key_data(key)),
        key_impl=str(jax.random.key_impl(key)),
        agent_state=config.agent_state,
        jax_settings={name: getattr(jax.config, name) for name in _JAX_SETTINGS},
    )
