"""Clusters to be connected to: one that is there, or a small one that is started here, on the loopback interface only."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import contextlib
import importlib
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from typing import Any

from envpool_bridge.errors import UserError
from jaxsrl.cluster.ray_engine import import_ray

_LOOPBACK = "127.0.0.1"
# No report of use is sent anywhere; nodes start no processes before they are wanted, and take this machine for 127.0.0.1.
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Ray's own switch for keeping to the loopback interface
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
_QUIET = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": False}
_MIN_STORE_BYTES = 100 << 20


class LocalCluster:
    """A head without cores, and nodes that pretend to be machines. Process-safety: the process that started it owns it.

    Attributes:
        nodes: Ray's objects of the nodes, by name.
    """

    def __init__(self, num_nodes: int, cores_per_node: int, object_store_bytes: int = 0) -> None:
        """Starts it and connects this process; takes seconds.

        Args:
            num_nodes: besides the head.
            cores_per_node: that each says it has.
            object_store_bytes: of shared memory for each; at least Ray's least.

        Raises:
            UserError: Ray is not installed, or this process is connected to a cluster already.
        """
        with _environment(_ENVIRONMENT), _sigterm_as_it_is():
            self._ray = import_ray()
            if self._ray.is_initialized():
                raise UserError(
                    "--run.cluster local starts a cluster, but this process is connected to one: use --run.cluster auto"
                )
            self._store_bytes = max(object_store_bytes, _MIN_STORE_BYTES)
            self._cores = cores_per_node
            self._directory = tempfile.mkdtemp(prefix="jaxsrl-ray-")
            self.nodes: dict[str, Any] = {}
            self._cluster: Any = None
            try:
                self._start_head()
                for number in range(num_nodes):
                    self.add_node(f"node{number + 1}")
            except BaseException:
                self.close()
                raise

    def _start_head(self) -> None:
        # A Ray that was imported before has read its switch already.
        importlib.import_module("ray._private.ray_constants").ENABLE_RAY_CLUSTER = False
        self._ray.init(
            num_cpus=0,
            num_gpus=0,
            include_dashboard=False,
            object_store_memory=self._store_bytes,
            _node_ip_address=_LOOPBACK,
            _node_name="head",
            _temp_dir=self._directory,
            **_QUIET,
        )
        worker = importlib.import_module("ray._private.worker")
        self._cluster = importlib.import_module("ray.cluster_utils").Cluster()
        self._cluster.head_node = worker._global_node  # nodes join the head that we are on
        self._cluster.redis_address = None

    def add_node(self, name: str) -> None:
        """Starts one more node; returns when it has joined."""
        with _environment(_ENVIRONMENT):
            self.nodes[name] = self._cluster.add_node(
                wait=False,
                num_cpus=self._cores,
                num_gpus=0,
                object_store_memory=self._store_bytes,
                include_dashboard=False,
                node_ip_address=_LOOPBACK,
                node_name=name,
            )

    def remove_node(self, name: str) -> None:
        """Kills a node, as a machine that loses its power."""
        self._cluster.remove_node(self.nodes.pop(name), allow_graceful=False)

    def close(self) -> None:
        """Ends every process of the cluster and removes its files; idempotent."""
        try:
            for name in list(self.nodes):
                self.remove_node(name)
        finally:
            self._ray.shutdown()
            shutil.rmtree(self._directory, ignore_errors=True)


@contextlib.contextmanager
def joined_cluster() -> Iterator[None]:
    """Inside, this process is connected to the Ray cluster that is there: its own connection's, or what Ray calls "auto".

    Raises:
        UserError: Ray is not installed, or there is no cluster.
    """
    with _environment({"RAY_USAGE_STATS_ENABLED": "0"}), _sigterm_as_it_is():
        ray = import_ray()
        is_ours = not ray.is_initialized()  # else a notebook's, say, which stays connected
        try:
            if is_ours:
                ray.init(address="auto", **_QUIET)
        except (ConnectionError, RuntimeError) as error:
            raise UserError(
                f"--run.cluster auto found no Ray cluster to join ({error}): start one (ray start --head, and ray start --address "
                f"on the other machines), set RAY_ADDRESS, or use --run.cluster local"
            ) from error
    try:
        yield
    finally:
        if is_ours:
            ray.shutdown()


@contextlib.contextmanager
def _sigterm_as_it_is() -> Iterator[None]:
    """Ray makes SIGTERM end the process at once; a run stops in good order."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Inside, these environment variables are set, unless the user has set them."""
    changed = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(changed)
    try:
        yield
    finally:
        for name in changed:
            os.environ.pop(name, None)
