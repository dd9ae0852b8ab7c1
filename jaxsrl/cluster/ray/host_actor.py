"""An environment host as Ray starts it. Imports no jax at first: how jax is set up is decided here, before anything imports it."""

import os
from typing import Any

import numpy as np

from jaxsrl.collect.actors.factory import set_up_jax


class RayHost:
    """The body of a Ray actor: an EnvironmentHost that is made when it is wanted. Threads of two concurrency groups call it."""

    def __init__(self) -> None:
        set_up_jax(os.environ)
        # What is imported here is imported by one thread.
        from jaxsrl.cluster.hosts.environment_host import EnvironmentHost

        self._host = EnvironmentHost()

    def start(self, setup: bytes) -> None:
        self._host.start(setup)

    def publish(self, version: int, block: np.ndarray) -> None:
        self._host.publish(version, block)

    def use_server(self, server: int, actor: Any) -> None:
        from jaxsrl.cluster.ray.server_actor import RayLink

        self._host.use_server(server, RayLink(actor))

    def next_slot(self) -> tuple[int, np.ndarray]:
        """As the host does: Ray copies the memory into its object store as it is, before it makes the next call of this group."""
        return self._host.next_slot()

    def stats(self) -> dict[str, float]:
        return self._host.stats()
