"""`jaxsrl plan` of learner processes, with and without a cluster: who is where, without starting anything."""

import importlib
import json

import pytest

import jaxsrl.cli.main
from envpool_bridge.supervisor import forkserver

TWO = (
    "experiments/ppo_cartpole.py",
    "--gpus",
    "1",
    "--cores",
    "8",
    "--learner.num-devices",
    "2",
    "--pool.num-workers",
    "4",
)
PROCESSES = ("--distributed.coordinator", "learner-0:7777", "--distributed.num-processes", "2")
PROCESSES = (*PROCESSES, "--distributed.process-id", "0")
HOSTS = ("--cluster.address", "local", "--cluster.num-hosts", "4", "--pool.lanes-per-worker", "1")


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch):
    def no_process(self):
        raise AssertionError("a process was started")

    monkeypatch.setattr(forkserver.ForkServer, "__init__", no_process)


def shown(capsys, *arguments):
    jaxsrl.cli.main.main(["plan", *arguments])
    return capsys.readouterr().out


def test_plan_lists_hosts_rows_and_devices_by_process(capsys):
    pytest.importorskip("ray")
    found = json.loads(shown(capsys, *TWO, *PROCESSES, *HOSTS, "--plan", "single_learner_coarse", "--json"))
    none = {"servers": [], "server_nodes": []}
    assert found["processes"] == [
        {"process": 0, "devices": [0], "rows": [0, 63], "replicas": [0, 1], "nodes": ["node1", "node2"], **none},
        {"process": 1, "devices": [1], "rows": [64, 127], "replicas": [2, 3], "nodes": ["node3", "node4"], **none},
    ]
    table = shown(capsys, *TWO, *PROCESSES, *HOSTS, "--cluster.placement", "strict_pack").split("learner processes")[1]
    assert "64-127" in table
    assert "node1, node1" in table


def test_plan_lists_servers_by_process_and_node(capsys):
    pytest.importorskip("ray")
    served = (*TWO, *PROCESSES, *HOSTS, "--cluster.num-inference-servers", "2")
    found = json.loads(shown(capsys, *served, "--json"))
    (inference,) = [fragment for fragment in found["fragments"] if fragment["kind"] == "inference"]
    assert [(one["servers"], one["server_nodes"]) for one in found["processes"]] == [
        ([server], [node]) for server, node in enumerate(inference["nodes"])
    ]
    table = shown(capsys, *served).split("learner processes")[1].split("channels")[0]
    assert "inference servers" in table
    assert "64-127" in table


def test_plan_rejects_indivisible_servers(capsys, monkeypatch):
    monkeypatch.setattr("jaxsrl.cluster.ray.engine.import_ray", lambda: importlib.import_module("json"))
    with pytest.raises(SystemExit) as stopped:
        shown(capsys, *TWO, *PROCESSES, *HOSTS, "--cluster.num-inference-servers", "3")
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert "3 inference servers do not divide over 2 learner processes" in said
    assert "use --cluster.num-inference-servers 4, or 0" in said


def test_plan_without_cluster_lists_environments_by_process(capsys):
    table = shown(capsys, *TWO, *PROCESSES).split("learner processes")[1].split("channels")[0]
    assert "replicas" in table
    assert "node" not in table
    assert "0-63" in table


def test_plan_asks_for_unknown_number_of_processes(capsys):
    with pytest.raises(SystemExit) as stopped:
        shown(capsys, *TWO, "--distributed.coordinator", "auto")
    assert stopped.value.code == 2
    assert "use --distributed.coordinator HOST:PORT --distributed.num-processes N" in capsys.readouterr().err


def test_plan_rejects_indivisible_hosts(capsys, monkeypatch):
    monkeypatch.setattr("jaxsrl.cluster.ray.engine.import_ray", lambda: importlib.import_module("json"))
    with pytest.raises(SystemExit) as stopped:
        shown(capsys, *TWO, *PROCESSES, "--cluster.address", "local", "--cluster.num-hosts", "3")
    assert stopped.value.code == 2
    assert (
        "3 environment hosts do not divide over 2 learner processes: use --cluster.num-hosts" in capsys.readouterr().err
    )
