"""Trajectories from a host's pool whose lanes inference servers on other nodes act for."""

from collections.abc import Mapping

import numpy as np

from envpool_bridge.envs.protocol import EpisodeReset
from jaxsrl.cluster.inference.client import RemoteActing, ServerLink
from jaxsrl.cluster.inference.messages import ActingMessages
from jaxsrl.collect.collector import CollectorConfig, open_pool, split_reset, supervision_metrics
from jaxsrl.collect.inference.act import take_rows
from jaxsrl.collect.slot_layout import agent_layout
from jaxsrl.machine.lifecycle import Lifecycle
from jaxsrl.plan.passes.place_inference import server_of_lane


class ServedCollector:
    """One replica of a plan's environments; it knows no parameters. Threads as `PoolCollector` has them.

    Args:
        config: what every source is made from; with what the rows of the run remember.
        replica: Replica of the plan.
        lifecycle: Lifecycle of the threads.
        incarnation: Incarnation of the host.
    """

    def __init__(self, config: CollectorConfig, replica: int, lifecycle: Lifecycle, incarnation: int) -> None:
        plan, shape = config.plan, config.plan.shape
        self._first_row, self._shape, self._lifecycle = replica * shape.num_rows, shape, lifecycle
        self._pool = open_pool(config, replica)
        lanes = range(replica * shape.num_lanes, (replica + 1) * shape.num_lanes)
        limits = config.supervision
        self._acting = RemoteActing(
            self._pool,
            ActingMessages(agent_layout(config.spec, shape, config.agent)),
            take_rows(config.agent_state, slice(self._first_row, self._first_row + shape.num_rows)),
            [server_of_lane(plan, lane) for lane in lanes],
            lanes.start,
            incarnation,
            # The learner gives up earlier, and says more.
            2.0 * (limits.start_timeout_seconds + limits.step_timeout_seconds),
        )

    def use_server(self, server: int, link: ServerLink) -> None:
        """Sets the link to an inference server; servers of other rows are ignored."""
        self._acting.use(server, link)

    def start(self, reset: EpisodeReset) -> None:
        """Starts the workers, and asking for actions."""
        self._pool.start(split_reset(reset, self._shape, self._first_row))
        self._lifecycle.start_thread("remote acting", lambda: self._acting.run(self._lifecycle.should_stop))

    def acquire(self, timeout_seconds: float) -> int | None:
        return self._pool.acquire(timeout_seconds)

    def slot_memory(self, sequence: int) -> np.ndarray:
        return self._pool.slot_memory(sequence)

    def release(self, sequence: int) -> None:
        self._pool.release(sequence)

    def totals(self) -> Mapping[str, float]:
        """Returns seconds waited and requests sent; those of environments are means over workers."""
        return {
            "env/wait_seconds": self._pool.env_wait_seconds / self._shape.num_workers,
            **self._acting.totals,
            **supervision_metrics([self._pool.supervision]),
        }

    def close(self) -> None:
        """Stops the workers; the thread that asks has stopped."""
        self._acting.stop()
        self._pool.close()
