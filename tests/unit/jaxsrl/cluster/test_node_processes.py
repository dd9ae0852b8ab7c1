"""Commands on nodes: exit status, output, signals, leases, restarts after a loss, and room."""

import contextlib
import signal
import subprocess
import sys
import time
import types

import pytest

from envpool_bridge.errors import UserError
from jaxsrl.cluster import node_processes as module
from jaxsrl.cluster.hosts import command_host
from jaxsrl.cluster.node_processes import NodeLimits, NodeProcessLostError, share_of_nodes
from jaxsrl.cluster.protocol.engine import ClusterLostError, HostGoneError
from jaxsrl.cluster.ray import actors
from jaxsrl.machine.resources import Node
from jaxsrl.machine.run_tasks import Task
from tests.support.node_engine import Answer, NodeEngine

WAIT = "import time; time.sleep(60)"
TRANSIT_SECONDS = module._TRANSIT_SECONDS  # which tests replace
AT_ONCE = NodeLimits(max_restarts=1, lease_seconds=0.05)


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    monkeypatch.setattr(module, "_CALL_SECONDS", 0.0)
    monkeypatch.setattr(module, "_TRANSIT_SECONDS", 0.0)
    monkeypatch.setattr(module, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(command_host, "_SEE_SECONDS", 0.0)


@contextlib.contextmanager
def started(directory, code, engine=None, lines=None, limits=None):
    engine = engine or NodeEngine()
    nodes = engine.processes(directory, (lines if lines is not None else []).append, limits)
    with contextlib.closing(nodes):
        task = Task("run", ["/other/python", "-S", "-c", code], directory / "run.txt")
        yield engine, nodes.start(task)


def poll_often(process, after=lambda: None):
    for _ in range(1000):
        process.poll()
        after()
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("code", "status"), [("print(7)", 0), ("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", -9)]
)
def test_a_command_on_a_node_ends_as_one_here(tmp_path, code, status):
    with started(tmp_path, code) as (engine, process):
        assert process.wait(20) == process.poll() == status
    assert (tmp_path / "run.txt").read_text() == ("7\n" if status == 0 else "")
    assert engine.remotes[0].is_gone  # its cores are free


def test_a_signal_reaches_the_command(tmp_path):
    code = "import signal, sys; signal.signal(15, lambda *_: sys.exit(5)); print('ready', flush=True); signal.pause()"
    with started(tmp_path, code) as (_, process):
        deadline = time.monotonic() + 20
        while "ready" not in ((tmp_path / "run.txt").read_text() if (tmp_path / "run.txt").exists() else ""):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 5


@pytest.fixture
def signals_of_ray():
    """Blocks and ignores signals as the processes of Ray do."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_signals_that_ray_blocks_reach_the_command(tmp_path, signals_of_ray, number):
    code = "import signal; print('ready', flush=True); signal.pause()"
    with started(tmp_path, code) as (_, process):
        deadline = time.monotonic() + 20
        while "ready" not in (tmp_path / "run.txt").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert process.poll() is None
        process.send_signal(number)
        assert process.wait(5) == -number


def test_a_command_that_waits_for_room_stops_at_once(tmp_path):
    with started(tmp_path, WAIT, NodeEngine(has_room=False)) as (engine, process):
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(0) == -signal.SIGTERM
    assert engine.remotes[0].is_gone


def test_a_lost_command_starts_again_after_its_lease(tmp_path):
    lines = []
    limits = NodeLimits(lease_seconds=0.3)
    with started(tmp_path, WAIT, lines=lines, limits=limits) as (engine, process):
        assert process.poll() is None
        engine.remotes[0].kill()
        process.poll()
        process.poll()
        lost_at = time.monotonic()
        while len(engine.remotes) == 1:
            assert process.poll() is None
        assert time.monotonic() - lost_at > 0.2
        assert process.poll() is None
        process.kill()
    assert [line.split(":")[0] for line in lines][1] == "run is lost (the worker died)"
    assert [line.split(" on ")[0] for line in (lines[0], lines[2])] == ["run runs", "run runs"]


def test_a_command_that_is_lost_too_often_raises(tmp_path):
    with started(tmp_path, WAIT, limits=AT_ONCE) as (engine, process):
        with pytest.raises(NodeProcessLostError, match="run was lost with its node 2 times, at most 1"):
            poll_often(process, lambda: engine.remotes[-1].kill())
        assert process.poll() == 1


def test_a_command_that_is_lost_shows_its_last_output(tmp_path):
    path = tmp_path / "run.txt"
    path.write_text("of an earlier command\n")
    code = f"print('first'); print('no memory is  left.\\n', flush=True); {WAIT}"

    def kill():
        if "left" in path.read_text():
            engine.remotes[-1].kill()

    with started(tmp_path, code, limits=AT_ONCE) as (engine, process), pytest.raises(NodeProcessLostError) as raised:
        poll_often(process, kill)
    message = f"the worker died. Its last output, in {path}: no memory is left. Look at the memory and"
    assert message in str(raised.value)
    assert "earlier" not in str(raised.value)


class BrokenNodes(NodeEngine):
    """Nodes on which no host starts, as Ray says it: with a traceback, of which an error has the first words."""

    def get(self, call):
        cause = RuntimeError(
            "it did not import:\n  File x.py, line 1\nModuleNotFoundError: No module named 'jaxsrl'\n\n"
        )
        raise HostGoneError("it did not import: File x") from cause


def test_a_command_that_never_starts_says_what_failed(tmp_path):
    (tmp_path / "run.txt").write_text("of an earlier command\n")
    with (
        started(tmp_path, WAIT, BrokenNodes(), limits=AT_ONCE) as (_, process),
        pytest.raises(NodeProcessLostError) as raised,
    ):
        poll_often(process)
    assert str(raised.value) == (
        "run could not start on a node 2 times, at most 1 are allowed. The last time: it did not import: File x [...] "
        "ModuleNotFoundError: No module named 'jaxsrl'. Look at the Python environments and the logs of the nodes. The same "
        "command continues"
    )


def test_a_lost_command_that_stops_does_not_start_again(tmp_path):
    with started(tmp_path, WAIT, limits=AT_ONCE) as (engine, process):
        process.poll()
        engine.remotes[0].kill()
        process.send_signal(signal.SIGTERM)
        assert process.wait(5) == -signal.SIGTERM
    assert len(engine.remotes) == 1


def test_a_silent_host_is_lost(tmp_path):
    with started(tmp_path, WAIT, limits=AT_ONCE) as (engine, process):
        assert process.poll() is None
        engine.remotes[0].has_room = False  # its calls do not end
        deadline = time.monotonic() + 10
        while len(engine.remotes) == 1:
            process.poll()
            assert time.monotonic() < deadline
        assert engine.remotes[0].is_gone


def test_waiting_for_one_command_extends_all_leases(tmp_path):
    engine = NodeEngine()
    with contextlib.closing(engine.processes(tmp_path)) as nodes:
        first, _ = (nodes.start(Task(name, ["python", "-S", "-c", WAIT], tmp_path / name)) for name in "ab")
        with pytest.raises(subprocess.TimeoutExpired):
            first.wait(0.1)
        assert all(remote.methods.count("status") > 1 for remote in engine.remotes)


def test_without_room_a_command_raises_unless_others_run(tmp_path):
    engine = NodeEngine()
    with contextlib.closing(engine.processes(tmp_path, limits=NodeLimits(room_seconds=0.1))) as nodes:
        first = nodes.start(Task("a", ["python", "-S", "-c", WAIT], tmp_path / "a"))
        engine.has_room = False
        second = nodes.start(Task("b", ["python", "-S", "-c", WAIT], tmp_path / "b"))
        for _ in range(30):
            assert first.poll() is second.poll() is None
            time.sleep(0.01)
        first.kill()
        with pytest.raises(NodeProcessLostError, match=r"no node has had room for b for 0.1 s \(1 core\)"):
            poll_often(second)


def test_a_node_without_the_files_is_rejected(tmp_path):
    with contextlib.closing(NodeEngine().processes(tmp_path)) as nodes:
        (tmp_path / ".nodes").write_text("of another file system")
        process = nodes.start(Task("run", ["python", "-S", "-c", WAIT], tmp_path / "run.txt"))
        with pytest.raises(UserError, match="on a file system that all nodes share"):
            process.poll()
    assert not (tmp_path / "run.txt").exists()


@pytest.mark.parametrize("late", [lambda host: None, lambda host: host.status(), lambda host: host.send_signal(0)])
def test_a_lease_that_is_over_stays_over(tmp_path, late):
    with started(tmp_path, WAIT, limits=AT_ONCE) as (engine, _):
        host = engine.remotes[0].host
        assert host.has_lease()
        time.sleep(0.06)
        late(host)  # a call that a paused machine gets late: the run may have started elsewhere
        assert not host.has_lease()


def test_a_late_call_extends_a_lease_from_the_call_before(tmp_path, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(command_host, "time", types.SimpleNamespace(monotonic=lambda: clock[0]))
    with started(tmp_path, WAIT, limits=NodeLimits(lease_seconds=60.0)) as (engine, _):
        host = engine.remotes[0].host
        for clock[0] in (1.0, 50.0):
            host.status()
        clock[0] = 55.0  # of what was sent at 50.5: after 112.5 the command starts elsewhere
        host.status()
        host.send_signal(0)
        for clock[0], expected in ((109.0, True), (111.0, False)):
            assert host.has_lease() is expected


class HangingNodes(NodeEngine):
    """Nodes that have room, but on which no start ends."""

    def spawn(self):
        remote = super().spawn()
        call = remote.call
        remote.call = lambda group, method, *rest: (
            Answer(has_ended=False) if method == "start" else call(group, method, *rest)
        )
        return remote


def test_a_start_that_hangs_is_lost(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_START_SECONDS", 0.01)
    with (
        started(tmp_path, WAIT, HangingNodes(), limits=AT_ONCE) as (engine, process),
        pytest.raises(NodeProcessLostError, match="a node had room, but did not start it within 0.01 s"),
    ):
        poll_often(process)
    assert [remote.is_gone for remote in engine.remotes] == [True, True]


def test_a_lost_cluster_is_an_error_of_its_commands(tmp_path):
    with started(tmp_path, WAIT) as (engine, process):
        assert process.poll() is None
        engine.losses.append(ClusterLostError("the head is lost"))
        with pytest.raises(ClusterLostError):
            process.poll()


def test_a_host_ends_before_its_command_starts_again():
    assert actors._LOOK_SECONDS < TRANSIT_SECONDS


def test_a_node_that_cannot_write_the_output_is_named(tmp_path):
    with contextlib.closing(NodeEngine().processes(tmp_path)) as nodes:
        (tmp_path / "run.txt").mkdir()  # a directory: even root cannot write to it
        process = nodes.start(Task("run", ["python", "-S", "-c", WAIT], tmp_path / "run.txt"))
        with pytest.raises(
            UserError, match=r"node .* cannot start a run: .*run\.txt.*the user who started the cluster"
        ):
            process.poll()
        assert process.poll() == 1


def test_a_directory_of_another_user_is_not_seen(tmp_path, monkeypatch):
    def stat(path, **options):
        raise PermissionError(13, "Permission denied", str(path))

    with contextlib.closing(NodeEngine().processes(tmp_path)) as nodes:
        monkeypatch.setattr(command_host.os, "stat", stat)
        process = nodes.start(Task("run", ["python", "-S", "-c", WAIT], tmp_path / "run.txt"))
        monkeypatch.undo()
        with pytest.raises(UserError, match="does not see"):
            process.poll()


def test_commands_get_the_variables_of_the_caller(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "of the caller")
    with started(tmp_path, "import os; print(os.environ['JAX_PLATFORMS'])") as (_, process):
        assert process.wait(20) == 0
    assert (tmp_path / "run.txt").read_text() == "of the caller\n"
    assert process._setup.command[0] != sys.executable  # the node has its own


@pytest.mark.parametrize(
    ("cores", "gpus", "at_once", "share"),
    [
        ((8, 8), 0, 2, (8, 0)),
        ((8, 8), 0, 3, (4, 0)),
        ((8, 4), 0, 3, (4, 0)),
        ((3, 3, 3), 0, 5, (1, 0)),
        ((8, 8), 2, 4, (4, 1)),
        ((8, 8), 1, 4, (4, 0)),
        ((2,), 0, 1, (2, 0)),
    ],
)
def test_commands_share_the_nodes_equally(cores, gpus, at_once, share):
    nodes = [Node(str(number), count, gpus) for number, count in enumerate(cores)]
    assert share_of_nodes(nodes, at_once) == share


@pytest.mark.parametrize("at_once", [0, 5])
def test_more_commands_than_cores_are_rejected(at_once):
    with pytest.raises(UserError, match=f"at most one for each of the 4 cores of the nodes, got {at_once}"):
        share_of_nodes([Node("a", 2), Node("b", 2)], at_once)
