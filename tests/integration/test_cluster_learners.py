"""Learner processes with environments on one Ray cluster: the same curve, nodes that are lost, and what a lost learner leaves."""

import json
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path

import pytest

from jaxsrl.cluster.ray.token import token_of
from jaxsrl.machine.doctor.leftovers import find_leftovers
from tests.integration.ray_marks import RAY_MARKS
from tests.integration.test_cluster import ray_processes, wait_for_record
from tests.integration.test_cluster_servers import server_processes
from tests.integration.test_distributed_learners import (
    UPDATES,
    assert_same_bits,
    ends,
    final,
    start,
    start_two,
    wait_for_checkpoint,
)

ray = pytest.importorskip("ray")

pytestmark = RAY_MARKS
WORKERS = ("--pool.num-workers", "4", "--pool.lanes-per-worker", "1")
HOSTS = ("--cluster.address", "local", "--cluster.num-hosts", "2")
START_SECONDS = 400.0
PATIENT = (
    "--distributed.lost-seconds",
    "100",
)  # starting Ray may take all of a small machine; who is killed is seen at once


SERVERS = ("--cluster.num-inference-servers", "2")  # one for each learner


def start_both(directory, *flags, updates=UPDATES):
    return start_two(directory, *flags, own={0: PATIENT, 1: PATIENT}, updates=updates)


@pytest.fixture
def run_files(monkeypatch):
    """A directory that every process of a run names in its environment; after the test nothing of them may be left."""
    directory = Path(tempfile.mkdtemp(prefix="j", dir="/tmp"))  # short: Ray puts sockets there
    monkeypatch.setenv("TMPDIR", str(directory))
    before = find_leftovers(directory, clean=False)  # of other runs of this machine
    try:
        yield directory
        left = ends_in_time(directory)
        assert left == {}
        assert list(directory.iterdir()) == []
        assert [each for each in find_leftovers(directory, clean=False) if each not in before] == []
    finally:
        for process in ray_processes(directory):
            os.kill(process, signal.SIGKILL)
        shutil.rmtree(directory, ignore_errors=True)


def ends_in_time(directory, seconds=60.0):
    """Command lines of processes of the run that are still there after so long; and files too have until then."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and (ray_processes(directory) or list(directory.iterdir())):
        time.sleep(0.2)
    found = {}
    for process in ray_processes(directory):
        try:
            found[process] = Path(f"/proc/{process}/cmdline").read_bytes()
        except OSError:
            continue
    return found


@pytest.fixture(scope="module")
def cluster():
    """A cluster that is there, which learner processes find as `auto`."""
    from jaxsrl.cluster.ray.local_cluster import LocalCluster

    started = LocalCluster(2, cores_per_node=8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ADDRESS", ray.get_runtime_context().gcs_address)
        patch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        for name, value in token_of(started.directory).items():
            patch.setenv(name, value)
        try:
            yield started
        finally:
            started.close()


@pytest.mark.parametrize("plan_name", ["single_learner_fine", "single_learner_coarse"])
def test_two_learners_with_hosts_match_one_process(tmp_path, cluster, plan_name):
    flags = (*WORKERS, "--plan", plan_name)
    one = start(tmp_path / "one", "--machine.num-cpu-devices", "2", *flags)
    assert ends([one])[0][0] == 0
    ended = ends(
        start_both(tmp_path / "two", *flags, "--cluster.address", "auto", "--cluster.num-hosts", "4"), START_SECONDS
    )
    assert [status for status, _, _ in ended] == [0, 0], ended
    assert_same_bits(final(tmp_path / "one"), final(tmp_path / "two"))
    fragments = json.loads((tmp_path / "two/run/plan.json").read_text())["fragments"]
    assert sorted(fragments[0]["nodes"]) == ["node1", "node1", "node2", "node2"]


@pytest.mark.parametrize("lag", [0, 1])
def test_two_learners_with_servers_match_one_process(tmp_path, cluster, lag):
    flags = (*WORKERS, "--plan", "single_learner_fine", "--run.max-policy-lag", str(lag))
    one = start(tmp_path / "one", "--machine.num-cpu-devices", "2", *flags)
    assert ends([one])[0][0] == 0
    ended = ends(
        start_both(tmp_path / "two", *flags, *SERVERS, "--cluster.address", "auto", "--cluster.num-hosts", "4"),
        START_SECONDS,
    )
    assert [status for status, _, _ in ended] == [0, 0], ended
    assert_same_bits(final(tmp_path / "one"), final(tmp_path / "two"))
    environments, inference, *_ = json.loads((tmp_path / "two/run/plan.json").read_text())["fragments"]
    assert (environments["replicas"], inference["replicas"], len(inference["nodes"])) == (4, 2, 2)
    record = last_record(tmp_path / "two")
    assert (record["cluster/hosts_lost"], record["cluster/servers_lost"]) == (0, 0)
    assert f"cluster/{inference['nodes'][0]}/requests_per_second" in record


def last_record(directory):
    return json.loads((directory / "run" / "metrics.jsonl").read_text().splitlines()[-1])


def test_killed_servers_of_two_learners_are_replaced(tmp_path, cluster):
    updates = 200
    flags = (*WORKERS, "--plan", "single_learner_fine", "--metrics.interval-seconds", "0.2")
    one = start(tmp_path / "one", "--machine.num-cpu-devices", "2", *flags, updates=updates)
    assert ends([one])[0][0] == 0
    auto = ("--cluster.address", "auto", "--cluster.num-hosts", "4")
    started = start_both(tmp_path / "two", *flags, *SERVERS, *auto, updates=updates)
    try:
        wait_for_record(tmp_path / "two/run/metrics.jsonl", lambda record: record["update"] > 10)
        killed = server_processes(cluster)
        assert len(killed) == 2
        for server in killed:
            os.kill(server, signal.SIGKILL)
    finally:
        ended = ends(started, START_SECONDS)
    assert [status for status, _, _ in ended] == [0, 0], ended
    record = last_record(tmp_path / "two")
    assert (record["cluster/hosts_lost"], record["cluster/servers_lost"]) == (0, 2)
    assert_same_bits(final(tmp_path / "one", updates), final(tmp_path / "two", updates))
    deadline = time.monotonic() + 20.0
    while server_processes(cluster) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert server_processes(cluster) == []


@pytest.mark.parametrize("served", [(), SERVERS], ids=["hosts act", "servers act"])
def test_killed_learner_ends_run_that_resumes_bit_for_bit(tmp_path, run_files, served):
    flags = (*WORKERS, "--plan", "single_learner_fine")
    one = start(tmp_path / "one", "--machine.num-cpu-devices", "2", *flags, updates=200)
    assert ends([one])[0][0] == 0
    flags = (*flags, *served)
    started = start_both(tmp_path / "two", *flags, *HOSTS, updates=200)
    wait_for_checkpoint(tmp_path / "two", START_SECONDS)
    started[1].kill()
    (status, _, said), (killed, _, _) = ends(started, seconds=90)
    assert (status, killed) == (75, -signal.SIGKILL), said
    assert "resumes from the newest checkpoint" in said
    assert ends_in_time(run_files) == {}
    ended = ends(start_both(tmp_path / "two", *flags, *HOSTS, updates=200), START_SECONDS)
    assert [status for status, _, _ in ended] == [0, 0], ended
    assert_same_bits(final(tmp_path / "one", 200), final(tmp_path / "two", 200))


def test_killed_process_0_leaves_no_cluster_processes(tmp_path, run_files):
    flags = (*WORKERS, "--plan", "single_learner_fine")
    started = start_both(tmp_path, *flags, *HOSTS, updates=100_000)
    wait_for_checkpoint(tmp_path, START_SECONDS)
    started[0].kill()
    (killed, _, _), (status, _, said) = ends(started, seconds=90)
    assert (killed, status) == (-signal.SIGKILL, 75), said
    assert "resumes from the newest checkpoint" in said


def test_killed_node_of_second_learner_moves_its_host(tmp_path, cluster):
    flags = ("--plan", "single_learner_coarse", "--pool.num-workers", "2", "--metrics.interval-seconds", "0.5")
    started = start_both(tmp_path, *flags, "--cluster.address", "auto", "--cluster.num-hosts", "2", updates=1_000_000)
    records = tmp_path / "run" / "metrics.jsonl"
    try:
        wait_for_record(records, lambda record: record.get("cluster/node2/env_steps_per_second", 0.0) > 0.0)
        nodes = json.loads((tmp_path / "run" / "plan.json").read_text())["fragments"][0]["nodes"]
        assert sorted(nodes) == ["node1", "node2"]
        lost, left = nodes[1], nodes[0]  # that of process 1, whose totals reach process 0's records
        cluster.remove_node(lost)
        begin = time.monotonic()
        wait_for_record(records, lambda record: record["cluster/hosts_lost"] >= 1)
        last = json.loads(records.read_text().splitlines()[-1])["update"]
        wait_for_record(records, lambda record: record["update"] > last + 100)
        print(f"seconds from a node's death until 100 updates after it: {time.monotonic() - begin:.1f}")
        record = json.loads(records.read_text().splitlines()[-1])
        assert record[f"cluster/{left}/env_steps_per_second"] > 0.0
        assert record[f"cluster/{lost}/env_steps_per_second"] == 0.0
    finally:
        started[0].send_signal(signal.SIGTERM)
        ended = ends(started, seconds=90)
    assert [status for status, _, _ in ended] == [143, 143], ended
    from ray.util.placement_group import placement_group_table

    assert {one["state"] for one in placement_group_table().values()} == {"REMOVED"}
