"""Model store on another node: the host that owns the files there, and the client with the methods of `ModelStore`."""

import asyncio
import functools
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from envpool_bridge.errors import EnvPoolError
from jaxsrl.checkpoints.manifest import CorruptCheckpointError
from jaxsrl.checkpoints.store import Arrays, CheckpointSaveError
from jaxsrl.cluster.protocol.engine import Engine, HostGoneError, RemoteHost
from jaxsrl.models.store import Model, ModelStore

CALL_SECONDS = 60.0
"""Default deadline of a call."""
START_SECONDS = 300.0
"""Deadline of the start of a store's process, which imports jax."""

_POLL_SECONDS = 0.02
_WAIT_SECONDS = 5.0  # of one call of `wait_newer`: the host stops waiting for a client that has died


class ModelStoreLostError(EnvPoolError):
    """Remote model store that died or did not answer within its deadline. Its files are unchanged or completely changed."""


class ModelStoreHost:
    """A model store in the process of an asynchronous actor.

    Args:
        directory: Directory of the store, on this node.
    """

    def __init__(self, directory: Path) -> None:
        self._store = ModelStore(directory)

    async def answer(self, method: str, arguments: Sequence[Any], options: Mapping[str, Any]) -> Any:
        """Returns the result of a method of `ModelStore`, or the error that it raised deliberately.

        A file operation takes a thread. A wait takes none, so that any number of clients can wait.
        """
        run = asyncio.get_running_loop().run_in_executor
        function = functools.partial(getattr(self._store, method), *arguments, **options)
        try:
            if method != "wait_newer":
                result = await run(None, function)
                return result.directory if isinstance(result, ModelStore) else result
            version, seconds = arguments
            deadline = time.monotonic() + seconds
            while (model := await run(None, self._store.wait_newer, version, 0.0)) is None:
                if time.monotonic() >= deadline:
                    return None
                await asyncio.sleep(_POLL_SECONDS)
            return model
        except (EnvPoolError, CorruptCheckpointError, CheckpointSaveError) as error:
            return error


class RemoteModelStore:
    """A model store on another node, with the methods, results and errors of `ModelStore`. Thread-safety: one thread.

    Paths are of the store's node; `clone` returns one instead of a store. Arrays of `load` are read-only.

    Args:
        engine: Engine that carries the calls.
        remote: a `ModelStoreHost` behind calls that do not wait.
        name: Name of the store, for messages.
        timeout_seconds: deadline of each call.

    Raises:
        ModelStoreLostError: If the store has died or does not answer in time.
    """

    def __init__(self, engine: Engine, remote: RemoteHost, name: str, timeout_seconds: float = CALL_SECONDS) -> None:
        self.name = name
        self._engine, self._remote, self._timeout_seconds = engine, remote, timeout_seconds

    def save(
        self, step: int, arrays: Arrays, metadata: Mapping[str, Any], tags: Sequence[str] = (), **notes: Any
    ) -> Path:
        """Saves a version unless it is there, and tags it."""
        return self._call("save", step, arrays, metadata, tags, **notes)

    def tag(self, name: str, query: str) -> Model:
        """Makes a tag point to the version that a query finds."""
        return self._call("tag", name, query)

    def untag(self, name: str) -> None:
        """Removes a tag; its version may then be collected."""
        self._call("untag", name)

    def annotate(self, version: int, **notes: Any) -> None:
        """Adds values to a version, by which queries find it."""
        self._call("annotate", version, **notes)

    def tags(self) -> dict[str, int]:
        """Returns the versions by tag."""
        return self._call("tags")

    def noted(self, name: str) -> set[int]:
        """Returns the versions with a note of this name."""
        return self._call("noted", name)

    def models(self) -> list[Model]:
        """Returns all versions, oldest first."""
        return self._call("models")

    def find(self, query: str) -> Model:
        """Returns the version that a query finds."""
        return self._call("find", query)

    def load(self, query: str) -> tuple[Model, Arrays]:
        """Returns a version and its arrays, verified on the node of the store."""
        return self._call("load", query)

    def wait_newer(self, version: int, timeout_seconds: float) -> Model | None:
        """Waits for a version newer than `version`; returns the newest, or None after `timeout_seconds` without one."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            left = max(0.0, deadline - time.monotonic())
            model = self._call("wait_newer", version, min(left, _WAIT_SECONDS))
            if model is not None or left <= _WAIT_SECONDS:
                return model

    def collect_garbage(self, keep: int) -> list[int]:
        """Deletes all versions without a tag but the newest `keep`; returns the deleted ones."""
        return self._call("collect_garbage", keep)

    def abandon(self, last: int) -> list[int]:
        """Removes all versions after `last` with the tags of the run; returns the removed ones."""
        return self._call("abandon", last)

    def clone(self, destination: Path, query: str = "") -> Path:
        """Copies one version, or all, into a new store on the node of the store, and returns its directory."""
        return self._call("clone", destination, query)

    def freeze(self, is_frozen: bool = True) -> None:
        """Makes the store reject all changes, or accept them again."""
        self._call("freeze", is_frozen)

    def _call(self, method: str, /, *arguments: Any, **options: Any) -> Any:
        """Returns the result of a method, or raises its error."""
        limit = self._timeout_seconds + (arguments[1] if method == "wait_newer" else 0.0)
        call = self._remote.call("control", "answer", method, arguments, options)
        try:
            if not self._engine.wait([call], limit):
                raise ModelStoreLostError(self._lost(method, f"no answer within {limit:.3g} s"))
            result = self._engine.get(call)
        except HostGoneError as error:
            raise ModelStoreLostError(self._lost(method, str(error))) from error
        if isinstance(result, Exception):
            raise result
        return result

    def _lost(self, method: str, reason: str) -> str:
        return (
            f"the model store {self.name!r} is lost ({method}: {reason}). A change that was under way is complete or not made. "
            f"Look at the memory and the logs of its node, serve its directory again there "
            f"(jaxsrl models RUN --serve {self.name}), then connect again"
        )
