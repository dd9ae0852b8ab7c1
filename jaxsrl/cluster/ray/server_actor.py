"""An inference server as Ray starts it, and the ways to it. Imports no jax at first: how jax is set up is decided here."""

# Ray says only partly which types it takes and gives:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import asyncio
import importlib
import os
from concurrent.futures import Future
from typing import Any

import numpy as np

from jaxsrl.cluster.protocol.engine import Call, Group, HostGoneError
from jaxsrl.collect.actors.factory import set_up_jax

_MAX_CALLS = 4096  # at once: one a lane, and a few more


class RayServer:
    """The body of an asynchronous Ray actor: an ActionServer. One event loop, which only hands over; others act and start."""

    def __init__(self, gpus: int) -> None:
        if not gpus:
            set_up_jax(os.environ)
        from jaxsrl.cluster.inference.server import ActionServer

        self._server = ActionServer()

    async def start(self, setup: bytes) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._server.start, setup)

    async def publish(self, version: int, block: np.ndarray) -> None:
        self._server.publish(version, block)

    async def act(self, request: np.ndarray) -> np.ndarray:
        return await asyncio.wrap_future(self._server.submit(request))

    async def stats(self) -> dict[str, float]:
        return await asyncio.wrap_future(self._server.stats())


class RayRemoteServer:
    """A RemoteServer that is a Ray actor.

    Args:
        ray: the module.
        options: of the actor: where it is, and what it takes.
        gpus: that it acts with; 0 for the processor.
    """

    def __init__(self, ray: Any, options: dict[str, Any], gpus: int) -> None:
        self._ray = ray
        taken = {**options, "num_gpus": gpus, "max_restarts": 0, "max_task_retries": 0, "max_concurrency": _MAX_CALLS}
        self._actor = ray.remote(**taken)(RayServer).remote(gpus)

    @property
    def link(self) -> Any:
        """Returns the actor's handle, which Ray sends along with a call."""
        return self._actor

    def call(self, group: Group, method: str, *arguments: Any) -> Call:
        del group
        return getattr(self._actor, method).remote(*arguments)

    def kill(self) -> None:
        self._ray.kill(self._actor, no_restart=True)


class RayLink:
    """A ServerLink from one actor to another."""

    def __init__(self, actor: Any) -> None:
        self._actor, self._exceptions = actor, importlib.import_module("ray.exceptions")

    def ask(self, request: np.ndarray) -> "Future[np.ndarray]":
        answer: Future[np.ndarray] = Future()

        def pass_on(done: "Future[np.ndarray]") -> None:
            error = done.exception()
            if error is None:
                answer.set_result(done.result())
            elif isinstance(error, self._exceptions.RayError) and not isinstance(error, self._exceptions.RayTaskError):
                answer.set_exception(HostGoneError(" ".join(str(error).split())[:300]))
            else:
                answer.set_exception(RuntimeError(f"an inference server failed:\n{error}"))

        self._actor.act.remote(request).future().add_done_callback(pass_on)
        return answer
