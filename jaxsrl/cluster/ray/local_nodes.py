"""A small Ray cluster on the loopback interface, in a process without jax: Ray forks, which jax's threads do not survive.

Run by `local_cluster.LocalCluster` as `python -m jaxsrl.cluster.ray.local_nodes DIRECTORY CORES OBJECT_STORE_BYTES`. It writes the
address as its first line of output. It then executes the commands `add NAME GPUS` and `remove NAME` from its input and answers each
with a line. At the end of its input it stops the cluster. If it dies, the kernel kills the nodes.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import contextlib
import ctypes
import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

LOOPBACK = "127.0.0.1"
RECONNECT = "RAY_gcs_rpc_server_reconnect_timeout_s"
"""Ray's variable: seconds without the head after which Ray ends a process."""

_PR_SET_CHILD_SUBREAPER = 36
# No report of use is sent anywhere; nodes start no processes before they are wanted, and take this machine for 127.0.0.1.
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Ray's own switch for keeping to the loopback interface
    RECONNECT: "600",  # in which a run that has lost the head saves and ends
}


class Nodes:
    """A head without cores, and nodes that pretend to be machines.

    Args:
        cores: Cores that each node says it has.
        object_store_bytes: Size of the object store of each.

    Attributes:
        address: Address of the head, host:port.
    """

    def __init__(self, cores: int, object_store_bytes: int) -> None:
        from ray.cluster_utils import Cluster

        self._common = {
            "num_gpus": 0,
            "object_store_memory": object_store_bytes,
            "include_dashboard": False,
            "node_ip_address": LOOPBACK,
        }
        self._cores = cores
        self._nodes: dict[str, Any] = {}
        self._cluster = Cluster(
            initialize_head=True,
            head_node_args={**self._common, "num_cpus": 0, "node_name": "head"},
            shutdown_at_exit=True,
        )
        self.address = str(self._cluster.address)

    def add(self, name: str, gpus: str = "0") -> None:
        """Starts one more node that offers this number of GPUs; returns when it has joined."""
        has = {**self._common, "num_cpus": self._cores, "num_gpus": int(gpus)}
        self._nodes[name] = self._cluster.add_node(node_name=name, **has)

    def remove(self, name: str) -> None:
        """Kills a node, as a machine that loses its power."""
        self._cluster.remove_node(self._nodes.pop(name), allow_graceful=False)

    def close(self) -> None:
        """Ends all nodes with their workers, by SIGKILL: SIGTERM is blocked in them."""
        try:
            for node in [*self._cluster.worker_nodes, self._cluster.head_node]:
                self._cluster.remove_node(node, allow_graceful=False)
        finally:
            kill_children()


def adopt_orphans() -> None:
    """Makes this process the parent of workers whose node has died, so that it can end them."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def kill_children() -> None:
    """Ends the children of this process, and theirs."""
    with contextlib.suppress(ChildProcessError):  # none is left
        while True:
            for pid in " ".join(path.read_text() for path in Path("/proc/self/task").glob("*/children")).split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            os.waitpid(-1, 0)


def main(directory: str, cores: int, object_store_bytes: int) -> None:
    """Runs the command; see the module."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever Ray prints is no answer
    adopt_orphans()
    os.environ.update(ENVIRONMENT)
    os.environ["RAY_TMPDIR"] = directory
    Path(directory, "ray").mkdir(exist_ok=True)
    nodes = Nodes(cores, object_store_bytes)  # after a failure the process that started it deletes the files
    try:
        answers.write(json.dumps({"address": nodes.address}) + "\n")
        for line in sys.stdin:
            what, *words = line.split()
            (nodes.add if what == "add" else nodes.remove)(*words)
            answers.write(json.dumps({"done": line.strip()}) + "\n")
    finally:
        nodes.close()
    shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
