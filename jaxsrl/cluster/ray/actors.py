"""The processes of a run as Ray actors, and the learner's way to them.

Imports no jax at first: each actor sets jax up before anything imports it. Ray never restarts an actor and never repeats a call,
because only the learner knows how a lost process resumes.
"""

# Ray says only partly which types it takes and gives:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import asyncio
import dataclasses
import importlib
import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np

from envpool_bridge.errors import EnvPoolError
from jaxsrl.cluster.protocol.engine import Call, Group, HostGoneError, SlotLost
from jaxsrl.collect.actors.factory import set_up_jax

_SLOT_SECONDS = 1e6  # until a host has filled a slot; the learner's process ends hosts that do not answer
_LOOK_SECONDS = 1.0


class RayHost:
    """Body of an actor with an EnvironmentHost. Threads of two concurrency groups call it."""

    def __init__(self) -> None:
        set_up_jax(os.environ)
        # Only this thread imports modules.
        from jaxsrl.cluster.hosts.environment_host import EnvironmentHost

        self._host = EnvironmentHost()

    def invoke(self, method: str, *arguments: Any) -> Any:
        """Returns the result of a method. Ray copies a slot into its object store before the next call of the same group."""
        return getattr(self._host, method)(*arguments)


class RayReplay:
    """Body of an actor with a ReplayHost. Threads of three concurrency groups call it."""

    def __init__(self) -> None:
        set_up_jax(os.environ)
        threading.Thread(target=_end_with, args=(os.getppid(),), name="node-watch", daemon=True).start()
        # Only this thread imports modules.
        from jaxsrl.cluster.replay.host import ReplayHost

        self._ray, self._replay = importlib.import_module("ray"), ReplayHost()

    def invoke(self, method: str, *arguments: Any) -> Any:
        """Returns the result of a method."""
        return getattr(self._replay, method)(*arguments)

    def fetch(self, host: int, incarnation: int, calls: Sequence[Any]) -> Any:
        """Fetches as RemoteReplay defines; the call is in a list, so that Ray passes it on before it has ended."""
        exceptions = self._ray.exceptions
        try:
            sequence, memory = self._ray.get(calls[0], timeout=_SLOT_SECONDS)
        except exceptions.RayTaskError as error:
            raise_cause(error)
            raise
        except exceptions.RayError as error:
            return SlotLost(first_words(error), is_doubted(exceptions, error))
        return self._replay.stage(host, incarnation, sequence, memory)


class RayServer:
    """Body of an asynchronous actor with an ActionServer, whose own threads start and act."""

    def __init__(self, gpus: int) -> None:
        if not gpus:
            set_up_jax(os.environ)
        from jaxsrl.cluster.inference.server import ActionServer

        self._server = ActionServer()

    async def invoke(self, method: str, *arguments: Any) -> Any:
        """Returns the result of a method, without blocking the event loop."""
        function = getattr(self._server, method)
        if method == "start":
            return await asyncio.get_running_loop().run_in_executor(None, function, *arguments)
        result = function(*arguments)
        return await asyncio.wrap_future(result) if isinstance(result, Future) else result


class RayModels:
    """Body of an asynchronous actor with a ModelStoreHost."""

    def __init__(self, directory: str) -> None:
        set_up_jax(os.environ)
        from jaxsrl.cluster.models import ModelStoreHost

        self._host = ModelStoreHost(Path(directory))

    async def invoke(self, method: str, *arguments: Any) -> Any:
        """Returns the result of a method."""
        return await getattr(self._host, method)(*arguments)


class RayCommand:
    """Body of an actor with a CommandHost; the main thread calls it, on which the kernel's end of the command depends."""

    def __init__(self) -> None:
        from jaxsrl.cluster.hosts.command_host import CommandHost

        self._host = CommandHost()
        threading.Thread(target=self._end_without_lease, name="lease", daemon=True).start()

    def invoke(self, method: str, *arguments: Any) -> Any:
        """Returns the result of a method."""
        return getattr(self._host, method)(*arguments)

    def _end_without_lease(self) -> None:
        while self._host.has_lease():
            time.sleep(_LOOK_SECONDS)
        os._exit(1)


def start_actor(ray: Any, body: type, options: dict[str, Any], *arguments: Any) -> Any:
    """Starts an actor.

    Args:
        ray: the module.
        body: class of the actor.
        options: Options of the actor: its node, its resources and its concurrency.
        arguments: Arguments of the class.
    """
    return ray.remote(**options, max_restarts=0, max_task_retries=0)(body).remote(*arguments)


class RayRemote:
    """A RemoteHost that is a Ray actor.

    Args:
        actor: one of the bodies above.
        has_groups: whether its concurrency groups answer calls; otherwise one thread or event loop answers all of them.
    """

    def __init__(self, actor: Any, has_groups: bool = False) -> None:
        self._actor, self._has_groups = actor, has_groups

    def call(self, group: Group, method: str, *arguments: Any) -> Call:
        invoke = self._actor.invoke.options(concurrency_group=group) if self._has_groups else self._actor.invoke
        return invoke.remote(method, *arguments)

    def kill(self) -> None:
        """Ends the process by SIGKILL; the kernel ends its workers with it."""
        importlib.import_module("ray").kill(self._actor, no_restart=True)


class RayRemoteReplay(RayRemote):
    """A RemoteReplay."""

    def fetch(self, host: int, incarnation: int, slot: Call) -> Call:
        return self._actor.fetch.options(concurrency_group="slots").remote(host, incarnation, [slot])


class RayRemoteServer(RayRemote):
    """A RemoteServer."""

    @property
    def link(self) -> "RayLink":
        return RayLink(self._actor)


@dataclasses.dataclass(frozen=True)
class RayLink:
    """A ServerLink to the actor of an inference server."""

    actor: Any

    def ask(self, request: np.ndarray) -> "Future[np.ndarray]":
        answer: Future[np.ndarray] = Future()
        exceptions = importlib.import_module("ray.exceptions")

        def pass_on(done: "Future[np.ndarray]") -> None:
            error = done.exception()
            if error is None:
                answer.set_result(done.result())
            elif isinstance(error, exceptions.RayError) and not isinstance(error, exceptions.RayTaskError):
                answer.set_exception(HostGoneError(first_words(error)))
            else:
                answer.set_exception(RuntimeError(f"an inference server failed:\n{error}"))

        self.actor.invoke.remote("submit", request).future().add_done_callback(pass_on)
        return answer


def raise_cause(error: BaseException) -> None:
    """Raises the EnvPoolError that made a call of an actor fail, if it was one."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, EnvPoolError):
        raise cause from None


def first_words(error: BaseException) -> str:
    """Returns an error's message on one line, at most 300 characters."""
    return " ".join(str(error).split())[:300]


def is_doubted(exceptions: Any, error: BaseException) -> bool:
    """Returns whether the node of a lost actor may be dead too: the node of a dead actor reports its death."""
    return not isinstance(error, exceptions.RayActorError) or isinstance(error, exceptions.ActorUnavailableError)


def _end_with(parent: int) -> None:
    """Ends this process when that of its node has: Ray would wait for calls that run, and these wait for the learner."""
    while os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)
    os._exit(1)
