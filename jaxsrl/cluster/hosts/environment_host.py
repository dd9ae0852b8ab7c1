"""An environment host: a pool of this machine, and a policy for it or the way to one, behind a few calls. It knows no engine.

Whole slots leave it. The memory that `next_slot` returns is the ring's own; it is the environments' again when the next call
comes, by which time the engine has taken a copy along.
"""

import dataclasses
import threading
import time

import jax
import numpy as np

from jaxsrl.cluster.inference.client import ServerLink
from jaxsrl.cluster.inference.served_pool import ServedCollector
from jaxsrl.cluster.protocol.published_params import VersionQueue
from jaxsrl.cluster.protocol.setup import HostSetup, load_setup
from jaxsrl.collect.actor_pool import ActorCollector
from jaxsrl.collect.collector import CollectorConfig
from jaxsrl.collect.pool import PoolCollector
from jaxsrl.machine.lifecycle import Lifecycle
from jaxsrl.machine.process_usage import usage_totals
from jaxsrl.machine.split_cpu import host_device
from jaxsrl.plan.fragment import Processes

_WAIT_SECONDS = 0.2
_START_SECONDS = 600.0


class EnvironmentHost:
    """One replica of a plan's environments. Thread-safety: `next_slot` from one thread; the others from any."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._starting = threading.Lock()
        self._links: dict[int, ServerLink] = {}  # that came before the source
        self._lifecycle = Lifecycle()
        self._versions = VersionQueue(self._changed)
        self._source: ActorCollector | PoolCollector | ServedCollector | None = None
        self._started = False
        self._lent: int | None = None

    def start(self, setup: bytes) -> None:
        """Starts environments and policy; returns when all of them run.

        Args:
            setup: a HostSetup's bytes. The first version of the parameters comes by `publish`; a host whose servers act
                receives none, and `use_server` gives it the links to them.

        Raises:
            UserError: If the environments cannot be made here.
            TimeoutError: If the first version did not come.
        """
        made: HostSetup = load_setup(setup)
        with self._starting:  # `close` comes before or after all of this
            self._require_open()
            if made.config.plan.calls_servers:
                self._begin_served(made)
            else:
                self._begin_acting(made)
        with self._changed:
            self._started = True
            self._changed.notify_all()

    def publish(self, version: int, block: np.ndarray) -> None:
        """Accepts parameters that may act from now on; versions may come in any order.

        Args:
            version: their number.
            block: flat, as `layout_of` the agent's parameters says; it may be read-only.
        """
        self._versions.receive(version, block)

    def use_server(self, server: int, link: ServerLink) -> None:
        """Sets the link to an inference server; before or after `start`."""
        with self._changed:
            self._links[server] = link
            source = self._source
        if isinstance(source, ServedCollector):
            source.use_server(server, link)

    def next_slot(self) -> tuple[int, np.ndarray]:
        """Returns the sequence and the memory, [slot_bytes] uint8, of the next full slot; waits for it, and raises what failed.

        Raises:
            EnvPoolError: If an environment failed, or its process.
            RuntimeError: If the host was closed.
        """
        source = self._started_source()
        if self._lent is not None:
            source.release(self._lent)
            self._lent = None
        while True:
            self._lifecycle.raise_error()
            self._require_open()
            sequence = source.acquire(_WAIT_SECONDS)
            if sequence is not None:
                self._lent = sequence
                return sequence, source.slot_memory(sequence)

    def stats(self) -> dict[str, float]:
        """Returns the source's `totals`, and what its processes use (`usage_totals`); {} before it has started."""
        return {**self._source.totals(), **usage_totals()} if self._started and self._source is not None else {}

    def close(self) -> None:
        """Stops everything; idempotent."""
        self._lifecycle.stop()
        with self._changed:
            self._changed.notify_all()
        with self._starting:
            self._lifecycle.join()
            if self._source is not None:
                self._source.close()

    def _require_open(self) -> None:
        if self._lifecycle.should_stop():
            raise RuntimeError("the environment host was closed")

    def _started_source(self) -> ActorCollector | PoolCollector | ServedCollector:
        deadline = time.monotonic() + _START_SECONDS
        with self._changed:
            while not self._started:
                self._changed.wait(_WAIT_SECONDS)
                self._require_open()
                if time.monotonic() > deadline:
                    raise TimeoutError(f"the environment host had not started after {_START_SECONDS:g} s")
        if self._source is None:
            raise RuntimeError("start comes first")
        return self._source

    def _begin_served(self, made: HostSetup) -> None:
        source = ServedCollector(made.config, made.replica, self._lifecycle, made.incarnation)
        with self._changed:
            self._source, links = source, dict(self._links)
        for server, link in links.items():
            source.use_server(server, link)
        source.start(made.reset)

    def _begin_acting(self, made: HostSetup) -> None:
        key = jax.random.wrap_key_data(jax.numpy.asarray(made.key_data), impl=made.key_impl)
        source = _make_source(dataclasses.replace(made.config, act_key=key), made.replica, self._lifecycle)
        self._source = source
        self._versions.open(made, source.publish)
        self._versions.wait_for_first(self._require_open)
        source.start(made.reset)


def _make_source(config: CollectorConfig, replica: int, lifecycle: Lifecycle) -> ActorCollector | PoolCollector:
    if isinstance(config.plan.inference.placement, Processes):
        return ActorCollector(config, replica)
    device = host_device()
    replicas = range(replica, replica + 1)
    return PoolCollector(config, [device] * config.plan.environments.replicas, lifecycle, replicas)
