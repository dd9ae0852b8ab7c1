"""Trajectories from actor processes: each steps its environments and acts for them with its own copy of the policy."""

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
    """A pool whose workers act themselves. Parameters go out through shared memory, trajectories come in through the ring."""

    def __init__(self, config: CollectorConfig, lifecycle: Lifecycle, replica: int = 0) -> None:
        """Reserves memory and begins to start the actors; refuses what cannot run.

        Args:
            config: what every source is made from.
            lifecycle: of the run; this source starts no thread.
            replica: of the plan's environments, which this source is for.

        Raises:
            UserError: the plan's workers share lanes, or the environment cannot be sent to them.
        """
        del lifecycle
        plan, agent = config.plan, config.agent
        check_shape(plan.shape)
        self._shape, self._first = plan.shape, config.first_sequence
        self._first_row = replica * plan.shape.num_rows
        # Only the shapes are needed before the first parameters come, so the key may be any.
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
        """Copies the parameters to where the actors read them, and wakes those that wait for them."""
        self._params.publish(version, jax.device_get(jax.tree.leaves(params)))
        self._pool.wake_workers()

    def start(self, reset: EpisodeReset) -> None:
        """Starts the actors, which compile, reset and go on with the parameters that are published."""
        descriptors = (self._params.descriptor, self._counters.descriptor)
        policy = LocalPolicySpec(self._factory, descriptors, self._may_act)
        self._pool.start(split_reset(reset, self._shape, self._first_row), policy)

    def _may_act(self, sequence: int) -> bool:
        return self._params.acting_version(sequence, self._max_policy_lag) is not None

    def acquire(self, timeout_seconds: float) -> int | None:
        """The next full slot's sequence, or None; raises what environments or policies raised."""
        return self._pool.acquire(timeout_seconds)

    def slots(self, sequence: int) -> list[SlotViews]:
        """The leased slot, in shared memory."""
        return [self._pool.views[sequence % self._shape.num_slots]]

    def slot_memory(self, sequence: int) -> np.ndarray:
        """[slot_bytes] uint8, the memory of the leased slot, for whoever sends it away whole."""
        return self._pool.slot_memory(sequence)

    def release(self, sequence: int) -> None:
        """Gives the slot back to the actors."""
        self._pool.release(sequence)

    def drop(self, sequence: int) -> None:
        """Never asked for: a plan that drops trajectories has an inference server."""
        raise RuntimeError("actors learn from every slot")

    def first_observation(self, should_stop: Callable[[], bool]) -> Tree | None:
        """A copy of the first slot's first observation, once every actor has written it."""
        while not self._pool.wait_begun(_WAIT_SECONDS):
            if should_stop():
                return None
        return map_leaves(lambda array: array[0].copy(), self.slots(self._first)[0].observation)

    def totals(self) -> Mapping[str, float]:
        """Seconds waited and calls made; seconds of actors are means over actors."""
        acted, actors = self._counters.totals(), self._shape.num_workers
        return {
            "environment/wait_seconds": self._pool.environments_waited_seconds / actors,
            "learner/wait_seconds": self._pool.learning_waited_seconds,
            "inference/busy_seconds": acted.busy_seconds / actors,
            "inference/calls": float(acted.calls),
            "inference/rows": float(acted.rows),
            **supervision_metrics([self._pool.supervision]),
        }

    def waits(self) -> list[str]:
        """See `Collector`."""

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


def _acting(agent: AnyAgent) -> AnyAgent:
    """The agent without what learns, which knows of devices that another process does not have."""
    if isinstance(agent, Agent):
        agent = agent._replace(gradient_steps=None, groups=())
    return agent._replace(init=_learns_elsewhere, update=_learns_elsewhere)


def _learns_elsewhere(*_: Any) -> NoReturn:
    raise TypeError("an actor acts: it neither begins nor learns")


def _factory(config: CollectorConfig, template: Params, layout: ParamsLayout) -> ActorFactory:
    key = config.act_key
    structure = jax.tree.map(lambda leaf: 0, template)
    return ActorFactory(
        agent=cloudpickle.dumps((_acting(config.agent), structure)),
        params_layout=layout,
        max_policy_lag=config.plan.max_policy_lag,
        key_data=np.asarray(jax.random.key_data(key)),
        key_impl=str(jax.random.key_impl(key)),
        agent_state=config.agent_state,
        jax_settings={name: getattr(jax.config, name) for name in _JAX_SETTINGS},
    )
