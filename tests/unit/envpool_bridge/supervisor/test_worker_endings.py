"""Ends of workers, of their connections and of what their environments start: signals, silence, late answers."""

import multiprocessing
import os
import select
import signal
import socket
import subprocess
import sys
import time

import pytest

from envpool_bridge.errors import EnvPoolError, WorkerDiedError
from envpool_bridge.options import SupervisorOptions
from envpool_bridge.shm.layout import PoolShape
from envpool_bridge.supervisor.channel import WorkerChannel
from envpool_bridge.supervisor.forkserver import ForkServer
from envpool_bridge.supervisor.processes import WorkerProcesses, _Process
from tests.chaos.counting import Counting, act, begin, collect, make_pool

ONE = PoolShape(num_workers=1, lanes_per_worker=1, workers_per_lane=1, rows_per_part=1, rollout_length=4, num_slots=2)
SECONDS = 60.0
MOST_CALLS = 1_000  # of a wait that sleeps: it is called a few times


def wait_until(condition):
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class StartsOthers(Counting):
    """Ends, with SIGTERM, a program and a forked process that it has started."""

    def act_up(self):
        program = subprocess.Popen(["sleep", "100"])
        forked = multiprocessing.get_context("fork").Process(target=time.sleep, args=(100,))
        forked.start()
        try:
            for process in (program, forked):
                process.terminate()
            assert program.wait(SECONDS / 6) == -signal.SIGTERM
            forked.join(SECONDS / 6)
            assert forked.exitcode == -signal.SIGTERM
        finally:
            program.kill()
            forked.kill()


def test_stop_signal_ends_programs_of_environments():
    with make_pool(ONE, StartsOthers) as pool:
        begin(pool)
        collect(pool, 1, seconds=SECONDS)  # raises what the environment raises


def test_group_signals_do_not_reach_environment_programs():
    with make_pool(ONE, Counting) as pool:
        begin(pool)
        server = pool._workers._server._process.pid
        (worker,) = pool._workers._pids
        assert os.getpgid(worker) == server != os.getpgid(0)


@pytest.fixture
def program():
    with subprocess.Popen(["sleep", "100"]) as process:
        yield process
        process.kill()


def test_wait_after_a_closed_connection_keeps_its_deadline(program):
    ours, theirs = socket.socketpair()
    process = _Process(program.pid, WorkerChannel(ours, 1.0), None)
    theirs.close()
    discard, calls = process.connection.discard, []

    def counted():
        calls.append(None)
        assert len(calls) < MOST_CALLS
        return discard()

    process.connection.discard = counted
    assert not process.has_stopped(time.monotonic() + 0.1)
    assert len(calls) == 1
    program.kill()
    assert process.has_stopped(time.monotonic() + SECONDS)
    process.close()


class HangsUp(Counting):
    """Closes its worker's connection at the third step, and steps on."""

    def act_up(self):
        if self.steps == 3:
            frame = sys._getframe()
            while "connection" not in frame.f_locals:
                frame = frame.f_back
            null = os.open("/dev/null", os.O_RDWR)
            os.dup2(null, frame.f_locals["connection"].fileno())
            os.close(null)


@pytest.mark.slow
def test_closed_connection_wakes_no_wait():
    with make_pool(ONE, HangsUp) as pool:
        begin(pool)
        collect(pool, 2, seconds=SECONDS)
        pool._workers.receive()
        assert pool._workers.receive() == []
        poll = select.poll()
        poll.register(pool._workers.messages_descriptor, select.POLLIN)
        assert poll.poll(0) == []
        os.kill(pool._workers._pids[0], signal.SIGKILL)
        collect(pool, 2, seconds=SECONDS)
        assert pool.supervision.restarts == 1


def test_closed_process_gets_no_signal(program):
    ours, theirs = socket.socketpair()
    process = _Process(program.pid, WorkerChannel(ours, 0.05), None)
    place = process.pidfd
    process.close()
    os.dup2(other := os.pidfd_open(program.pid), place)  # as if the descriptor was reused for another process
    process.kill("it did not read")
    process.send((0, "a reset"), "a reset", list)
    os.close(place)
    os.close(other)
    theirs.close()
    with pytest.raises(subprocess.TimeoutExpired):
        program.wait(0.2)


def test_workers_that_were_stopped_can_be_heard():
    workers = WorkerProcesses(1, 1, "none")
    workers.stop()
    assert workers.receive() == []
    workers.check()
    workers.stop()


def test_a_late_reply_of_the_server_answers_nothing():
    server = ForkServer()
    try:
        assert server.exit_status(1, 0.0) is None  # it answers
        server._socket.settimeout(0.1)
        os.kill(server._process.pid, signal.SIGSTOP)
        with pytest.raises(EnvPoolError, match=r"did not answer within 0\.1 s"):
            server.fork([])
        os.kill(server._process.pid, signal.SIGCONT)
        with pytest.raises(EnvPoolError, match="has ended"):
            server.exit_status(1, 0.0)
    finally:
        server.close()


class TellsMuch(Counting):
    """Its third step has infos that do not fit into the buffer of a socket."""

    def step(self, action):
        observation, reward, terminated, truncated, _ = super().step(action)
        return observation, reward, terminated, truncated, {"text": "x" * 300_000} if self.steps == 3 else {}


def test_a_worker_whose_infos_wait_to_be_read_does_not_hang():
    options = SupervisorOptions(step_timeout_seconds=2.0)
    with make_pool(ONE, TellsMuch, options, keep_infos=True) as pool:
        begin(pool)
        while pool.position(0) < (0, 3):
            act(pool)
        wait_until(pool.ready_lanes)  # reads the counters only
        assert pool.supervision.hangs == 0
        assert [len(info["text"]) for info in pool.infos(0)] == [300_000]


class NeverBegins(Counting):
    """Hangs in its first reset."""

    def reset(self, *, seed=None, options=None):
        while True:
            time.sleep(0.01)


def test_reset_that_always_hangs_exhausts_the_restarts():
    options = SupervisorOptions(max_restarts=1, window_seconds=0.01, start_timeout_seconds=0.2)
    with make_pool(ONE, NeverBegins, options) as pool:
        begin(pool)
        with pytest.raises(WorkerDiedError, match="start_timeout_seconds"):
            pool.wait_ready(SECONDS / 2)
        assert pool.supervision.restarts == 1
