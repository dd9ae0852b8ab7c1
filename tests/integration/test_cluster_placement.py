"""All hosts of a run or none: placement groups of a local Ray cluster, and what is left of them however a run ends."""

import contextlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from envpool_bridge.errors import UserError
from jaxsrl.cluster.protocol.bundles import HOSTS, SERVERS, Bundle, Reserving
from jaxsrl.cluster.ray.token import token_of
from jaxsrl.machine.doctor.leftovers import find_leftovers
from tests.integration.ray_marks import RAY_MARKS
from tests.integration.test_cluster import ray_processes, train, wait_for_record

ray = pytest.importorskip("ray")

pytestmark = RAY_MARKS
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def cluster():
    from jaxsrl.cluster.ray.local_cluster import LocalCluster

    with contextlib.closing(LocalCluster(2, cores_per_node=4)) as started:
        yield started


def wait_until(condition):
    deadline = time.monotonic() + 60.0
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert condition()


def groups_held():
    from ray.util.placement_group import placement_group_table

    return [one for one in placement_group_table().values() if one["state"] != "REMOVED"]


def test_placement_is_atomic_and_reports_missing_hosts(cluster, tmp_path):
    from jaxsrl.cluster.ray.engine import engine_with_room

    with engine_with_room([Bundle(3, 0, "node2"), Bundle(3, 0, "node1")], Reserving()) as engine:
        assert [engine.reserved_node(HOSTS, host) for host in (0, 1)] == ["node2", "node1"]
        begin = time.monotonic()
        with pytest.raises(UserError, match=r"3 environment hosts of 1 cores each.*2 cores are free"):
            train(tmp_path, cluster_address="auto", cluster_num_hosts=3, cluster_placement_timeout_seconds=2.0)
        assert time.monotonic() - begin < 20.0
        assert len(groups_held()) == 1  # that of the engine
    report = train(tmp_path, cluster_address="auto", cluster_num_hosts=3, cluster_placement_timeout_seconds=10.0)
    assert report.num_updates == 5
    assert groups_held() == []


@pytest.mark.parametrize("spreading", ["spread", "strict_spread"])
def test_waiting_run_reserves_no_resources(cluster, spreading):
    from jaxsrl.cluster.ray.engine import engine_with_room

    wait_until(lambda: ray.available_resources().get("CPU") == 8.0)  # those of the test before have come back
    said = []

    def wait_in_vain():
        hosts, servers = [Bundle(3), Bundle(3)], [Bundle(2, what=SERVERS)] * 2
        with pytest.raises(UserError) as refused, engine_with_room(hosts, Reserving(spreading, 30.0), servers):
            pass
        said.append(str(refused.value))

    waiting = threading.Thread(target=wait_in_vain)
    waiting.start()
    try:
        time.sleep(2.0)
        with engine_with_room([Bundle(4), Bundle(4)], Reserving("spread", wait_seconds=25.0)) as engine:
            assert sorted(engine.reserved_node(HOSTS, host) for host in (0, 1)) == ["node1", "node2"]
    finally:
        waiting.join(60.0)
    assert "2 environment hosts of 3 cores each" in said[0]
    assert "at the same time for 2 inference servers of 2 cores each" in said[0]
    assert groups_held() == []


@pytest.mark.parametrize("spreading", ["pack", "strict_pack"])
def test_hosts_and_servers_are_reserved_together(cluster, spreading):
    from jaxsrl.cluster.ray.engine import engine_with_room

    wait_until(lambda: ray.available_resources().get("CPU") == 8.0)
    servers = [Bundle(1, 0, "node2", what=SERVERS), Bundle(1, 0, "node1", what=SERVERS)]
    how = Reserving(spreading, wait_seconds=20.0)
    with engine_with_room([Bundle(2), Bundle(2)], how, servers) as engine:
        assert len({engine.reserved_node(HOSTS, host) for host in (0, 1)}) == 1
        assert all(engine.reserved_node(SERVERS, server) is not None for server in (0, 1))
        assert len(groups_held()) == (2 if spreading == "strict_pack" else 1)
    wait_until(lambda: ray.available_resources().get("CPU") == 8.0)


@pytest.mark.parametrize(("spreading", "nodes"), [("pack", 1), ("strict_pack", 1), ("strict_spread", 2)])
def test_hosts_are_where_the_placement_has_them(cluster, spreading, nodes):
    from jaxsrl.cluster.ray.engine import engine_with_room

    wait_until(lambda: ray.available_resources().get("CPU") == 8.0)  # those of the test before have come back
    with engine_with_room([Bundle(2), Bundle(2)], Reserving(spreading, wait_seconds=20.0)) as engine:
        assert len({engine.reserved_node(HOSTS, host) for host in (0, 1)}) == nodes


def test_local_cluster_requires_the_token(cluster):
    code = "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False); print('let in', len(ray.nodes()))"
    assert (cluster.directory / "token").stat().st_mode & 0o777 == 0o600
    assert cluster.directory.stat().st_mode & 0o777 == 0o700
    loopback = {**os.environ, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    with_token = token_of(cluster.directory)
    for token, is_let_in in [({}, False), ({**with_token, "RAY_AUTH_TOKEN": "another"}, False), (with_token, True)]:
        done = subprocess.run(
            [sys.executable, "-c", code, ray.get_runtime_context().gcs_address],
            env={**loopback, **token},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert ("let in" in done.stdout) == is_let_in, done.stderr


def test_placement_rejects_memory_that_no_node_has(cluster, tmp_path):
    with pytest.raises(UserError, match=r"977 TiB of memory.*node1: 4 cores and .* GiB.*--cluster.host-memory-gib"):
        train(
            tmp_path,
            cluster_address="auto",
            cluster_num_hosts=3,
            cluster_host_memory_gib=1e6,
            cluster_placement_timeout_seconds=1.0,
        )


def test_killed_learner_frees_its_hosts(cluster, tmp_path):
    directory = cluster.directory
    before, leftovers = ray_processes(directory), find_leftovers(tmp_path, clean=False)
    flags = ["--cluster.address", "auto", "--cluster.num-hosts", "2", "--pool.num-workers", "2", "--run.num-envs", "16"]
    flags += ["--plan", "single_learner_coarse", "--run.directory", str(tmp_path), "--run.name", "run"]
    flags += ["--metrics.interval-seconds", "0.5", "--run.total-env-steps", "100000000"]
    address = ray.get_runtime_context().gcs_address
    learner = subprocess.Popen(
        [sys.executable, "experiments/ppo_cartpole.py", *flags],
        cwd=ROOT,
        env={
            **os.environ,
            **token_of(directory),
            "RAY_ADDRESS": address,
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for_record(tmp_path / "run" / "metrics.jsonl", lambda record: record["update"] > 3)
        assert len(groups_held()) == 1
    finally:
        learner.kill()
        learner.wait(30.0)
        killed_at = time.monotonic()
    deadline = time.monotonic() + 60.0
    while time.monotonic() < deadline:
        hosts = {pid for pid in ray_processes(directory) - before if is_host(pid)}
        if not hosts and not groups_held():
            print(
                f"seconds from the learner's death until its hosts and their room are gone: {time.monotonic() - killed_at:.1f}"
            )
            break
        time.sleep(0.05)
    assert (hosts, groups_held()) == (set(), [])
    # Other runs of this machine may have left some before.
    assert [each for each in find_leftovers(tmp_path, clean=False) if each not in leftovers] == []
    wait_until(lambda: ray.available_resources().get("CPU") == 8.0)


def is_host(pid):
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return b"RayHost" in words or b"envpool" in words or b"jaxsrl" in words


def test_the_room_of_a_dead_node_moves_to_another_one(cluster):
    from jaxsrl.cluster.ray.engine import engine_with_room

    wait_until(lambda: ray.available_resources().get("CPU") == 8.0)
    cluster.add_node("node3")
    with engine_with_room([Bundle(3), Bundle(3)], Reserving("strict_spread", wait_seconds=20.0)) as engine:
        at = [engine.reserved_node(HOSTS, host) for host in (0, 1)]
        free = ({"node1", "node2", "node3"} - set(at)).pop()
        cluster.remove_node(at[0])
        begin = time.monotonic()
        wait_until(lambda: engine.reserved_node(HOSTS, 0) not in (at[0], None))
        print(f"seconds from a node's death until its room has moved: {time.monotonic() - begin:.1f}")
        assert [engine.reserved_node(HOSTS, host) for host in (0, 1)] == [free, at[1]]
