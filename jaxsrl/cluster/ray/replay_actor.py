"""Replay as Ray starts it, and the way to it. Imports no jax at first: how jax is set up is decided here."""

# Ray says only partly which types it takes and gives:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import importlib
import os
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from envpool_bridge.errors import EnvPoolError
from jaxsrl.cluster.protocol.engine import Call, Group, SlotLost
from jaxsrl.collect.actors.factory import set_up_jax

_SLOT_SECONDS = 1e6  # until a host has filled a slot; the learner's process ends hosts that do not answer
_LOOK_SECONDS = 1.0
_CONTROL_CALLS = 4  # at once: one may wait for priorities that another brings


class RayReplay:
    """The body of a Ray actor: a ReplayHost. Threads of three concurrency groups call it."""

    def __init__(self) -> None:
        set_up_jax(os.environ)
        threading.Thread(target=_end_with, args=(os.getppid(),), name="node-watch", daemon=True).start()
        # What is imported here is imported by one thread.
        from jaxsrl.cluster.replay.host import ReplayHost

        self._ray, self._replay = importlib.import_module("ray"), ReplayHost()

    def fetch(self, host: int, beginning: int, calls: Sequence[Any]) -> Any:
        """As RemoteReplay says; the one call is in a list, so that Ray hands it over before it has ended."""
        exceptions = self._ray.exceptions
        try:
            sequence, memory = self._ray.get(calls[0], timeout=_SLOT_SECONDS)
        except exceptions.RayTaskError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, EnvPoolError):
                raise cause from None
            raise
        except exceptions.RayError as error:
            known = isinstance(error, exceptions.RayActorError)
            doubted = not known or isinstance(error, exceptions.ActorUnavailableError)
            return SlotLost(" ".join(str(error).split())[:300], doubted)
        return self._replay.stage(host, beginning, sequence, memory)

    def start(self, setup: bytes) -> None:
        self._replay.start(setup)

    def begin(self, sequence: int, beginnings: Sequence[int], key_data: np.ndarray) -> np.ndarray:
        return self._replay.begin(sequence, beginnings, key_data)

    def edges(self, host: int, beginning: int, sequence: int) -> np.ndarray:
        return self._replay.edges(host, beginning, sequence)

    def sample(self) -> np.ndarray:
        return self._replay.sample()

    def give(self, first: int, priorities: np.ndarray) -> None:
        self._replay.give(first, priorities)

    def finish(self) -> np.ndarray:
        return self._replay.finish()

    def counts(self) -> np.ndarray:
        return self._replay.counts()

    def save(self) -> int:
        return self._replay.save()

    def saved_part(self, number: int) -> tuple[int, np.ndarray]:
        return self._replay.saved_part(number)

    def restore_part(self, number: int, part: np.ndarray) -> None:
        self._replay.restore_part(number, part)

    def restore(self) -> None:
        self._replay.restore()


def _end_with(parent: int) -> None:
    """Ends this process when that of its node has: Ray would wait for calls that run, and these wait for the learner."""
    while os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)
    os._exit(1)


class RayRemoteReplay:
    """A RemoteReplay that is a Ray actor.

    Args:
        ray: the module.
        options: of the actor: where it is, and what it takes.
        slots: that may be on their way to it at once: each is waited for by a thread.
    """

    def __init__(self, ray: Any, options: dict[str, Any], slots: int) -> None:
        self._ray = ray
        groups = {"slots": slots, "samples": 1, "control": _CONTROL_CALLS}
        taken = {**options, "max_restarts": 0, "max_task_retries": 0, "concurrency_groups": groups}
        self._actor = ray.remote(**taken)(RayReplay).remote()

    def fetch(self, host: int, beginning: int, slot: Call) -> Call:
        return self._actor.fetch.options(concurrency_group="slots").remote(host, beginning, [slot])

    def call(self, group: Group, method: str, *arguments: Any) -> Call:
        return getattr(self._actor, method).options(concurrency_group=group).remote(*arguments)

    def kill(self) -> None:
        self._ray.kill(self._actor, no_restart=True)
