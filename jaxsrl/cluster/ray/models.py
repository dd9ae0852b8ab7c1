"""Model stores as named Ray actors: a process serves the directory of its node, all processes of the cluster find it by name."""

# Ray says only partly which types it takes and gives:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import contextlib
import importlib
import time
from collections.abc import Iterator
from pathlib import Path

from envpool_bridge.errors import UserError
from jaxsrl.cluster.models import CALL_SECONDS, START_SECONDS, RemoteModelStore
from jaxsrl.cluster.protocol.engine import RemoteHost
from jaxsrl.cluster.ray.actors import RayModels, RayRemote, start_actor
from jaxsrl.cluster.ray.engine import RayEngine, import_ray

NAMESPACE = "jaxsrl.models"
"""Ray's namespace of the names of stores."""

_CLIENT_CALLS = 4096  # at once: one of each waiting client, and a few more
_LOOK_SECONDS = 0.2


@contextlib.contextmanager
def served_models(directory: Path, name: str, timeout_seconds: float = CALL_SECONDS) -> Iterator[RemoteModelStore]:
    """Serves, inside, a model store of this node to all processes of the Ray cluster that this process is connected to.

    The actor ends with this process, and takes no core. The files stay.

    Args:
        directory: Directory of the store, on this node.
        name: Name by which `connect_models` finds it.
        timeout_seconds: deadline of each call.

    Raises:
        UserError: another store has this name.
        ModelStoreLostError: If it did not start in time.
    """
    ray = import_ray()
    strategies = importlib.import_module("ray.util.scheduling_strategies")
    here = strategies.NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    options = {"name": name, "namespace": NAMESPACE, "num_cpus": 0, "max_concurrency": _CLIENT_CALLS}
    try:
        actor = start_actor(ray, RayModels, {**options, "scheduling_strategy": here}, str(directory.resolve()))
    except ValueError as error:
        raise UserError(f"a model store {name!r} is in this cluster: choose another name ({error})") from error
    remote = RayRemote(actor)
    try:
        yield _started(remote, name, timeout_seconds)
    finally:
        remote.kill()


def connect_models(name: str, timeout_seconds: float = CALL_SECONDS) -> RemoteModelStore:
    """Returns the model store of this name in the Ray cluster that this process is connected to.

    Args:
        name: given to `served_models`.
        timeout_seconds: until there is one of this name, and deadline of each call.

    Raises:
        UserError: If there was none in time; lists those that there are.
        ModelStoreLostError: If it did not start in time.
    """
    ray, deadline = import_ray(), time.monotonic() + timeout_seconds
    while True:
        try:
            actor = ray.get_actor(name, namespace=NAMESPACE)
        except ValueError:
            if time.monotonic() < deadline:
                time.sleep(_LOOK_SECONDS)
                continue
            names = [each["name"] for each in ray.util.list_named_actors(True) if each["namespace"] == NAMESPACE]
            raise UserError(
                f"no model store {name!r} in this cluster within {timeout_seconds:g} s: there are "
                f"{', '.join(sorted(names)) or 'none'}; serve one with jaxsrl models RUN --serve {name}"
            ) from None
        return _started(RayRemote(actor), name, timeout_seconds)


def _started(remote: RemoteHost, name: str, timeout_seconds: float) -> RemoteModelStore:
    """Returns the client of a store, once that has started."""
    engine = RayEngine()
    RemoteModelStore(engine, remote, name, START_SECONDS).tags()
    return RemoteModelStore(engine, remote, name, timeout_seconds)
