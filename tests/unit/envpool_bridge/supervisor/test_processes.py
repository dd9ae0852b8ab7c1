"""Worker processes that are stopped, outlive threads, have many neighbors, or cannot find their environment."""

import dataclasses
import json
import logging
import multiprocessing.process
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from envpool_bridge.envs.gymnasium_env import GymnasiumSource
from envpool_bridge.envs.protocol import GymnasiumReset
from envpool_bridge.errors import WorkerError
from envpool_bridge.options import SupervisorOptions
from envpool_bridge.pool import EnvPool
from envpool_bridge.shm.layout import PoolShape
from envpool_bridge.shm.slots import _WhenUsed
from envpool_bridge.supervisor import processes as worker_processes
from envpool_bridge.supervisor.forkserver import STOP_SIGNALS, ForkServer, import_path
from tests.chaos.counting import SHAPE, Counting, act, begin, check, collect, kill, make_pool, pids, still_running
from tests.chaos.sessions import ROOT

ONE = PoolShape(num_workers=1, lanes_per_worker=1, workers_per_lane=1, rows_per_part=2, rollout_length=4, num_slots=2)
MANY_DESCRIPTORS = 1_200  # of 300 workers
SECONDS = 60.0  # for what happens at once on a machine that does nothing else


def wait_until(condition):
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def many_descriptors():
    """More descriptors than select.select takes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2 * MANY_DESCRIPTORS:
        pytest.skip(f"this machine allows {hard} descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * MANY_DESCRIPTORS), hard))
    held = [os.open("/dev/null", os.O_RDONLY) for _ in range(MANY_DESCRIPTORS)]
    yield
    for descriptor in held:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def descriptors():
    paths = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    return sorted(os.readlink(path) for path in paths if os.path.lexists(path))  # the list's own is closed


@pytest.mark.parametrize("place", ["processes.ForkServer", "supervisor.Doorbell"])
def test_a_pool_that_cannot_be_made_leaves_nothing(place, monkeypatch):
    def fail(*args):
        raise OSError("no more processes")

    monkeypatch.setattr(f"envpool_bridge.supervisor.{place}", fail)
    before = descriptors()
    with pytest.raises(OSError, match="no more processes") as caught:
        make_pool(SHAPE)
    assert caught.value.__traceback__ is not None  # it keeps what the constructor has made from its collection
    assert descriptors() == before


class NeverBegins(Counting):
    """Hangs in its first reset."""

    def reset(self, *, seed=None, options=None):
        while True:
            time.sleep(0.01)


@pytest.mark.parametrize("interrupted", [["join"], ["has_stopped"], ["has_stopped", "has_ended"]])
def test_an_interrupted_close_leaves_nothing(interrupted, monkeypatch):
    def interrupt_once(owner, name):
        original = getattr(owner, name)

        def interrupt(*args):
            monkeypatch.setattr(owner, name, original)
            raise KeyboardInterrupt

        monkeypatch.setattr(owner, name, interrupt)

    before = descriptors()
    pool = make_pool(SHAPE, NeverBegins)
    begin(pool)
    workers = pids(pool)
    for name in interrupted:
        interrupt_once(pool._supervisor._thread if name == "join" else worker_processes._Process, name)
    with pytest.raises(KeyboardInterrupt):
        pool.close()
    assert descriptors() == before
    assert not pool._supervisor._thread.is_alive()
    wait_until(lambda: not still_running(workers))
    pool.close()


class HangsOnce(Counting):
    """Never returns from its third step while the file is there."""

    def __init__(self, path):
        super().__init__()
        self.path = path

    def act_up(self):
        if self.steps == 3 and os.path.exists(self.path):
            os.unlink(self.path)
            while True:
                time.sleep(0.01)


@pytest.mark.slow
def test_pool_works_above_descriptor_1023(many_descriptors, tmp_path):
    path = tmp_path / "once"
    path.touch()
    options = SupervisorOptions(step_timeout_seconds=0.3)
    with make_pool(ONE, partial(HangsOnce, str(path)), options) as pool:
        begin(pool)
        slots = collect(pool, 3, seconds=SECONDS)
        assert pool.supervision.hangs >= 1
        workers = pids(pool)
    check(slots)
    wait_until(lambda: not still_running(workers))


def test_workers_and_their_server_ignore_stop_signals():
    with make_pool(SHAPE) as pool:
        begin(pool)
        before = pids(pool)
        processes = [pool._workers._server._process.pid, *before]
        for number in STOP_SIGNALS:
            for pid in processes:
                os.kill(pid, number)
        slots = collect(pool, 3, seconds=SECONDS)
        assert pids(pool) == before
        assert pool.supervision.restarts == 0
        assert [os.fstat(stack).st_size for stack in pool._workers._stacks] == [0, 0], "no stack was asked for"
    check(slots)


def test_a_stop_signal_does_not_end_a_server_that_still_imports():
    server = ForkServer()
    try:
        for number in STOP_SIGNALS:  # its interpreter has hardly started
            os.kill(server._process.pid, number)
        assert server.exit_status(1, 0.0) is None  # it answers
    finally:
        server.close()


def test_views_of_a_long_ring_are_made_when_they_are_used():
    seen = []
    for length, kind in ((40, list), (5_001, _WhenUsed)):
        with make_pool(dataclasses.replace(ONE, rollout_length=length)) as pool:
            begin(pool)
            assert type(pool._actions[0]) is kind
            while pool.position(0) < (0, 30):
                act(pool)
            assert pool.wait_lane(0, SECONDS)
            seen.append((pool.views[0].observation[:31].copy(), pool.views[0].reward[:30].copy()))
    for short, long in zip(*seen, strict=True):
        np.testing.assert_array_equal(short, long)


class Exits(Counting):
    """Ends its process as a program does."""

    def act_up(self):
        sys.exit(3)


def test_an_exit_of_an_environment_is_named():
    with make_pool(ONE, Exits) as pool:
        begin(pool)
        with pytest.raises(WorkerError, match=r"environment worker 0 \(Exits\): SystemExit: 3\n"):
            collect(pool, 1, seconds=SECONDS)


def test_import_path_and_variables_of_workers(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", [tmp_path, *sys.path, "", b"bytes"])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    *others, own = json.loads(import_path())
    assert others == sys.path[1:-2]
    assert os.path.samefile(own, multiprocessing.process.ORIGINAL_DIR)
    server = ForkServer()
    try:
        assert server.exit_status(1, 0.0) is None  # it answers
        variables = Path(f"/proc/{server._process.pid}/environ").read_bytes().split(b"\0")
        assert {b"OMP_NUM_THREADS=4", b"MKL_NUM_THREADS=1", b"JAX_PLATFORMS=cpu"} <= {*variables}
    finally:
        server.close()


def test_a_server_that_cannot_start_raises_at_once(monkeypatch):
    def fail(value):
        raise TypeError("cannot be written")

    monkeypatch.setattr("envpool_bridge.supervisor.forkserver.json.dumps", fail)
    with pytest.raises(TypeError, match="cannot be written"):
        ForkServer()


def test_a_pool_outlives_the_thread_that_made_it():
    made = []

    def make():
        pool = make_pool(SHAPE)
        begin(pool)
        made.append(pool)

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    # The thread's task is gone for the kernel a moment after the join.
    wait_until(lambda: not os.path.exists(f"/proc/self/task/{thread.native_id}"))
    with made[0] as pool:
        before = pids(pool)
        check(collect(pool, 3, seconds=SECONDS))
        assert pids(pool) == before


class StopsInAMessage(Counting):
    """Stops its process at the third step, in the middle of a message to the parent, while the file is there."""

    def __init__(self, path):
        super().__init__()
        self.path = path

    def act_up(self):
        if self.steps == 3 and os.path.exists(self.path):
            os.unlink(self.path)
            frame = sys._getframe()
            while "connection" not in frame.f_locals:
                frame = frame.f_back
            os.write(frame.f_locals["connection"].fileno(), (1000).to_bytes(4, "big") + b"of which there are some")
            os.kill(os.getpid(), signal.SIGSTOP)


def test_worker_stopped_within_a_message_is_killed_as_hung(tmp_path):
    path = tmp_path / "once"
    path.touch()
    # Long enough that the supervisor reads the beginning of the message first: it does so once a second.
    options = SupervisorOptions(step_timeout_seconds=3.0)
    with make_pool(ONE, partial(StopsInAMessage, str(path)), options) as pool:
        begin(pool)
        check(collect(pool, 3, seconds=SECONDS))
        assert pool.supervision.hangs >= 1


class Heavy(Counting):
    """Its configuration does not fit into the buffer of a socket."""

    def __init__(self, payload):
        super().__init__()
        del payload


def test_worker_that_reads_no_configuration_is_replaced(monkeypatch, caplog):
    fork, forked = ForkServer.fork, []

    def fork_and_stop_the_first(server, descriptors):
        pid = fork(server, descriptors)
        if not forked:
            os.kill(pid, signal.SIGSTOP)
        forked.append(pid)
        return pid

    monkeypatch.setattr(ForkServer, "fork", fork_and_stop_the_first)
    monkeypatch.setattr(worker_processes, "_SEND_SECONDS", 1)
    caplog.set_level(logging.WARNING, "envpool_bridge")
    with make_pool(ONE, partial(Heavy, b"x" * 10_000_000)) as pool:
        begin(pool)
        check(collect(pool, 2, seconds=SECONDS))
    assert f"pid {forked[0]}) was killed: it did not read its configuration within 1 s" in caplog.text


class Noise(gymnasium.Env):
    """Shows what the global generators draw."""

    observation_space = spaces.Box(0.0, 1.0, (2,), np.float64)
    action_space = spaces.Discrete(5)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.drawn(), {}

    def step(self, action):
        return self.drawn(), 0.0, False, False, {}

    def drawn(self):
        return np.array([np.random.random(), random.random()])


def drawn(disturb=lambda pool, sequence: None):
    """[steps, rows, 2]: draws of two workers with a row each."""
    shape = PoolShape(2, 1, 1, 1, 4, 2)
    with make_pool(shape, Noise) as pool:
        begin(pool)
        slots = collect(pool, 4, disturb, seconds=SECONDS)
    return np.concatenate([slot["observation"][:-1] for slot in slots])


def num_distinct(draws):
    return len(np.unique(draws))


def test_global_generators_differ_by_worker_and_repeat_by_run():
    draws = drawn()
    assert num_distinct(draws) == draws.size
    np.testing.assert_array_equal(drawn(), draws)


def test_restarted_worker_draws_other_numbers():
    draws = drawn(lambda pool, sequence: kill(pool, 0) if sequence == 2 else None)
    assert num_distinct(draws) == draws.size


@pytest.mark.slow
def test_global_generators_without_a_seed_always_differ():
    firsts = []
    for _ in range(2):
        with EnvPool(GymnasiumSource(Noise), PoolShape(2, 1, 1, 1, 4, 2)) as pool:
            pool.start([GymnasiumReset((None,))] * 2)
            assert pool.wait_started(SECONDS)
            firsts.append(pool.views[0].observation[0].copy())
    assert num_distinct(np.stack(firsts)) == 8


SCRIPT = """
import gymnasium, numpy as np
from envpool_bridge.vector_env import PoolVectorEnv

def make_class():
    class Own(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(0, 1, (2,), np.float32)
        action_space = gymnasium.spaces.Discrete(2)
        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return np.zeros(2, np.float32), {}
        def step(self, action):
            return np.zeros(2, np.float32), 0.0, False, False, {}
    Own.__qualname__ = "Own"
    return Own

def run():
    with_env = PoolVectorEnv(Own, 2, num_workers=1)
    print(with_env.reset(seed=0)[0].shape)
    with_env.close()
"""
BODIES = {
    "no guard": "Own = make_class()\nrun()",
    "all below the guard": 'if __name__ == "__main__":\n    Own = make_class()\n    run()',
    "run below the guard": 'Own = make_class()\nif __name__ == "__main__":\n    run()',
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_script_needs_no_guard_for_its_own_environments(tmp_path, body):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT + body)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, path], env=environment, capture_output=True, text=True, timeout=300)
    assert done.stdout == "(2, 2)\n", done.stderr
