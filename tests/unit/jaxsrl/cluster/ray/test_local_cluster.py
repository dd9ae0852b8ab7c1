"""The process of the nodes of a local cluster, with one that starts no Ray in its place."""

import os
import signal
import subprocess
import sys
import threading
import types

import pytest

from envpool_bridge.errors import EnvPoolError
from envpool_bridge.supervisor.forkserver import STOP_SIGNALS
from jaxsrl.cluster.ray import local_cluster as module
from jaxsrl.cluster.ray.local_cluster import LocalCluster

NODES = """
import sys
print('{"address": "here"}', flush=True)
for line in sys.stdin:
    print('{"done": ""}', flush=True)
"""
ORPHANS = """
import subprocess, sys
from jaxsrl.cluster.ray.local_nodes import adopt_orphans, kill_children
adopt_orphans()
node = "import subprocess, sys; subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(600)'])"
subprocess.run([sys.executable, "-S", "-c", node])
kill_children()
print("gone", flush=True)
"""


@pytest.fixture
def ray(tmp_path, monkeypatch):
    """A Ray that connects to nothing."""
    made = types.SimpleNamespace(is_initialized=lambda: False, init=lambda **_: None, shutdown=lambda: None)
    monkeypatch.setattr(module, "import_ray", lambda *_: made)
    monkeypatch.setattr(module, "read_again", lambda: None)
    monkeypatch.setattr(module, "_connect", lambda *_: None)
    monkeypatch.setattr(module, "_place", lambda: tmp_path)

    def start(command, **options):
        return subprocess.Popen([sys.executable, "-S", "-c", NODES], **options)

    replaced = types.SimpleNamespace(Popen=start, PIPE=subprocess.PIPE, TimeoutExpired=subprocess.TimeoutExpired)
    monkeypatch.setattr(module, "subprocess", replaced)
    return made


def test_stop_signals_spare_the_nodes(ray):
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    cluster = LocalCluster(0, 1)
    try:
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
        for number in STOP_SIGNALS:
            os.kill(cluster._process.pid, number)
        cluster.add_node("node1")
    finally:
        cluster.close()
    assert (cluster._process.returncode, cluster.directory.exists()) == (0, False)


def test_a_cluster_whose_nodes_have_died_is_removed(ray):
    cluster = LocalCluster(0, 1)
    cluster._process.kill()
    cluster._process.wait(20)
    with pytest.raises(EnvPoolError, match="the local Ray cluster did not start"):
        cluster.add_node("node1")
    cluster.close()
    assert not cluster.directory.exists()


def test_a_disconnection_that_hangs_ends(ray, monkeypatch):
    monkeypatch.setattr(module, "_END_SECONDS", 0.2)
    ended = threading.Event()
    ray.shutdown = ended.wait
    cluster = LocalCluster(0, 1)
    try:
        cluster.close()
    finally:
        ended.set()
    assert not cluster.directory.exists()


def test_workers_that_outlive_their_node_are_ended():
    # It returns when no process holds the pipe any more.
    result = subprocess.run([sys.executable, "-c", ORPHANS], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout == "gone\n"
