"""Model stores that processes of a local Ray cluster follow, change and lose."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from envpool_bridge.errors import UserError
from jaxsrl.cluster.models import ModelStoreLostError
from jaxsrl.cluster.ray.token import token_of
from jaxsrl.models.store import ModelStore
from tests.integration.ray_marks import RAY_MARKS

ray = pytest.importorskip("ray")

pytestmark = RAY_MARKS
ROOT = Path(__file__).parents[2]
VERSIONS = 50
SHAPE = (300, 400)  # large enough for Ray's object store


@pytest.fixture(scope="module")
def cluster():
    from jaxsrl.cluster.ray.local_cluster import LocalCluster

    with contextlib.closing(LocalCluster(1, cores_per_node=2)) as started:
        yield started


@pytest.fixture(scope="module")
def environment(cluster):
    """Environment of processes that join the cluster as one that is there."""
    address = ray.get_runtime_context().gcs_address
    joined = {"RAY_ADDRESS": address, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    return {**os.environ, **token_of(cluster.directory), **joined}


def save(store, version):
    arrays = {"learner.params": np.full(SHAPE, version, np.float32), "learner.num_updates": np.array(version)}
    store.save(version, arrays, {"env_steps": 10 * version})


def write_versions(name):
    """Writes versions through the store of this name, and keeps the newest two."""
    from jaxsrl.cluster.ray.local_cluster import joined_cluster
    from jaxsrl.cluster.ray.models import connect_models

    with joined_cluster():
        store = connect_models(name)
        for version in range(1, VERSIONS + 1):
            save(store, version)
            store.collect_garbage(keep=2)


def follow_versions(name):
    """Returns the versions that were read, and how many were collected before; fails if one is torn or too old."""
    from jaxsrl.cluster.ray.models import connect_models

    store, version, read, collected = connect_models(name), 0, [], 0
    while version < VERSIONS:
        model = store.wait_newer(version, timeout_seconds=120.0)
        assert model is not None
        assert model.version > version
        version = model.version
        try:
            model, arrays = store.load(str(version))
        except UserError:
            collected += 1
            continue
        assert model.version == version == int(arrays["learner.num_updates"])
        np.testing.assert_array_equal(arrays["learner.params"], np.full(SHAPE, version, np.float32))
        read.append(version)
    newest, _ = store.load("newest")
    assert newest.version >= version
    assert store.wait_newer(VERSIONS, 0.0) is None
    return ray.get_runtime_context().get_node_id(), read, collected


def test_a_process_on_another_node_follows_the_versions(cluster, environment, tmp_path):
    from jaxsrl.cluster.ray.models import served_models

    with served_models(tmp_path / "models", "followed"):
        follower = ray.remote(num_cpus=1)(follow_versions).remote("followed")
        program = f"from {__name__} import *; write_versions('followed')"
        writer = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, env=environment)
        try:
            node, read, collected = ray.get(follower, timeout=300.0)
            assert writer.wait(60.0) == 0
        finally:
            writer.kill()
            writer.wait()
    assert node != ray.get_runtime_context().get_node_id()
    print(f"versions read: {len(read)}, collected before: {collected}")
    assert len(read) >= 5
    assert read[-1] == VERSIONS
    assert [model.version for model in ModelStore(tmp_path / "models").models()] == [VERSIONS - 1, VERSIONS]


def store_processes():
    """Processes of stores' actors."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and b"ray::RayModels" in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


def test_lost_store_is_an_error_and_is_served_again(cluster, tmp_path):
    from jaxsrl.cluster.ray.models import connect_models, served_models

    errors = []

    def wait_for_none(store):
        try:
            store.wait_newer(1, 300.0)
        except ModelStoreLostError as error:
            errors.append((time.monotonic(), str(error)))

    with served_models(tmp_path / "models", "mine") as served:
        save(served, 1)
        with pytest.raises(UserError, match="choose another name"), served_models(tmp_path, "mine"):
            pytest.fail("two stores have one name")
        with pytest.raises(UserError, match="no model store 'other' .* there are mine; serve one with jaxsrl models"):
            connect_models("other", timeout_seconds=0.5)
        client, hasty = connect_models("mine"), connect_models("mine", timeout_seconds=3.0)
        (pid,) = store_processes()

        # It is silent.
        os.kill(pid, signal.SIGSTOP)
        begin = time.monotonic()
        with pytest.raises(ModelStoreLostError, match="no answer within 3 s"):
            hasty.tags()
        print(f"seconds from a call with a deadline of 3 s to its error: {time.monotonic() - begin:.2f}")
        assert time.monotonic() - begin >= 3.0
        os.kill(pid, signal.SIGCONT)
        assert client.tags() == {}

        # It is dead.
        waiting = threading.Thread(target=wait_for_none, args=(client,))
        waiting.start()
        time.sleep(1.0)
        os.kill(pid, signal.SIGKILL)
        killed_at = time.monotonic()
        waiting.join(60.0)
        assert not waiting.is_alive()
        print(f"seconds from the store's death to the error: {errors[0][0] - killed_at:.2f}")
        assert "serve its directory again" in errors[0][1]
        with pytest.raises(ModelStoreLostError, match="'mine' is lost"):
            served.tag("best", "1")
    with served_models(tmp_path / "models", "mine"):
        assert connect_models("mine").find("newest").version == 1


def test_documented_store_is_served_and_followed(cluster, environment, tmp_path, capsys):
    page = (ROOT / "docs/how_to/models.md").read_text().partition("## Follow a run on a cluster")[2]
    command = re.findall(r"^```\njaxsrl (.*?)\n```$", page, re.M)[0].split()
    code = re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)[0]
    save(ModelStore(tmp_path / "runs/ppo_cartpole_seed0/models"), 3)
    serving = subprocess.Popen(
        [sys.executable, "-m", "jaxsrl.cli.main", *command],
        cwd=tmp_path,
        env={**environment, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "envpool_bridge")])},
    )
    try:
        code = code.replace("timeout_seconds=60.0", "timeout_seconds=0.0")
        exec(code.replace('connect_models("ppo_cartpole")', 'connect_models("ppo_cartpole", 300.0)'), {})
        assert capsys.readouterr().out == "3 30 2\n"
    finally:
        serving.send_signal(signal.SIGINT)
        assert serving.wait(60.0) == 0
