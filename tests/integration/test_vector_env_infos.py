"""Infos of any size come through PoolVectorEnv: also those that exceed what a socket buffers."""

import dataclasses
import enum
import os
import select
import signal
import time
from collections import namedtuple
from functools import partial
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from envpool_bridge.errors import WaitTimeoutError, WorkerError
from envpool_bridge.supervisor import processes
from envpool_bridge.vector_env import PoolVectorEnv
from tests.integration.test_vector_env import poll_until


class Telling(gymnasium.Env):
    """Infos of `num_bytes`, each the number of the step (0 after a reset) and the environment's seed."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, num_bytes, closed_directory=None):
        self.num_bytes, self.closed_directory = num_bytes, closed_directory

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count, self.seed = 0, seed
        return np.zeros(1, np.float32), self.info()

    def step(self, action):
        self.count += 1
        return np.zeros(1, np.float32), 0.0, False, False, self.info()

    def info(self):
        return {"frame": np.full(self.num_bytes, self.count * 16 + self.seed, np.uint8)}

    def close(self):
        if self.closed_directory is not None and hasattr(self, "seed"):
            Path(self.closed_directory, str(self.seed)).touch()


def assert_frames(info, rows, counts):
    frames = info["frame"]
    assert len(frames) == len(rows)
    for frame, row, count in zip(frames, rows, np.broadcast_to(counts, len(rows)), strict=True):
        assert (frame == count * 16 + row).all()


@pytest.mark.parametrize(
    ("num_envs", "num_bytes", "num_workers", "lanes_per_worker"),
    [(4, 60_000, 1, 1), (4, 60_000, 2, 1), (8, 250_000, 2, 2), (2, 8_000_000, 2, 1)],
)
def test_every_step_brings_its_own_infos(num_envs, num_bytes, num_workers, lanes_per_worker):
    make = partial(Telling, num_bytes)
    env = PoolVectorEnv(
        make, num_envs, num_workers=num_workers, lanes_per_worker=lanes_per_worker, timeout_seconds=30.0
    )
    try:
        for length in (5, 3):
            assert_frames(env.reset(seed=0)[1], range(num_envs), 0)
            for count in range(1, length + 1):
                assert_frames(env.step(np.zeros(num_envs, int))[4], range(num_envs), count)
    finally:
        env.close()


def test_lanes_that_recv_returns_bring_their_own_infos():
    env = PoolVectorEnv(partial(Telling, 300_000), 4, num_workers=1, lanes_per_worker=2, timeout_seconds=30.0)
    counts = np.zeros(4, int)
    try:
        env.reset(seed=0)
        env.send(np.zeros(4, int))
        for _ in range(12):
            *_, info = env.recv()
            rows = info.pop("env_id")
            counts[rows] += 1
            assert_frames(info, rows, counts[rows])  # one lane may be ahead of the other
            env.send(np.zeros(len(rows), int), rows)
    finally:
        env.close()


def wait_for_a_message(env):
    poll = select.poll()
    poll.register(env._lanes.pool._workers.messages_descriptor, select.POLLIN)
    assert poll.poll(30_000)


def test_worker_stopped_while_sending_infos_can_continue():
    env = PoolVectorEnv(partial(Telling, 4_000_000), 2, num_workers=1, timeout_seconds=30.0)
    try:
        env.reset(seed=0)
        env.step_async(np.zeros(2, int))
        wait_for_a_message(env)  # it cannot end before it is read
        pid = env._lanes.pool._workers._pids[0]
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(WaitTimeoutError):
            env.step_wait(timeout=0.5)
        os.kill(pid, signal.SIGCONT)
        assert_frames(env.step_wait()[4], range(2), 1)
    finally:
        env.close()


def test_close_ends_workers_with_unread_infos(tmp_path):
    env = PoolVectorEnv(partial(Telling, 4_000_000, str(tmp_path)), 2, num_workers=1, timeout_seconds=30.0)
    env.reset(seed=0)
    env.step_async(np.zeros(2, int))
    wait_for_a_message(env)
    with pytest.warns(UserWarning, match="`close` while waiting for a pending call to `step`"):
        env.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]


def test_polling_reads_infos_larger_than_a_socket():
    env = PoolVectorEnv(partial(Telling, 1_000_000), 1, num_workers=1)
    try:
        env.reset_async(seed=0)
        assert_frames(poll_until(env.reset_wait)[1], range(1), 0)
        env.step_async(np.zeros(1, int))
        assert_frames(poll_until(env.step_wait)[4], range(1), 1)
        env.call_async("info")
        assert_frames({"frame": [info["frame"] for info in poll_until(env.call_wait)]}, range(1), 1)
    finally:
        env.close()


class Echo(gymnasium.Env):
    """Infos that are the reset options, or the action and other keys."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), dict(options or {})

    def step(self, action):
        return np.zeros(1, np.float32), 0.0, False, False, {7: int(action), None: {(1, 2): 0.5}, "z": 1, "a": 2}


def test_requests_and_infos_larger_than_a_socket_both_arrive():
    env = PoolVectorEnv(Echo, 3, num_workers=1, lanes_per_worker=3)
    options = {"map": np.arange(200_000)}
    try:
        np.testing.assert_array_equal(env.reset(options=options)[1]["map"], [options["map"]] * 3)
    finally:
        env.close()


class StartsSlowly(Echo):
    """Takes long for a reset."""

    def reset(self, *, seed=None, options=None):
        time.sleep(0.5)
        return super().reset(seed=seed, options=options)


@pytest.mark.slow
def test_large_requests_do_not_wait_for_slow_lanes(monkeypatch):
    monkeypatch.setattr(processes, "_SEND_SECONDS", 0.2)
    env = PoolVectorEnv(StartsSlowly, 2, num_workers=1, lanes_per_worker=2)
    options = {"map": np.arange(200_000)}
    try:
        np.testing.assert_array_equal(env.reset(options=options)[1]["map"], [options["map"]] * 2)
    finally:
        env.close()


def test_infos_may_have_keys_without_an_order():
    env = PoolVectorEnv(Echo, 2, num_workers=1, lanes_per_worker=2)
    try:
        env.reset()
        env.send(np.ones(2, int))
        *_, infos = env.recv()
        assert list(infos) == ["env_id", 7, "_7", None, "_None", "z", "_z", "a", "_a"]
        assert infos[7].tolist() == [1]
        assert infos[None][1, 2].tolist() == [0.5]
    finally:
        env.close()


def test_infos_and_options_may_be_of_local_classes():
    class Color(enum.Enum):
        RED = 1

    @dataclasses.dataclass
    class Place:
        x: int

    Pair = namedtuple("Pair", ["first", "second"])
    Pair.__module__ = Place.__module__ = "__main__"  # as in a script
    sent = {"color": Color.RED, "place": Place(3), "pair": Pair(1, "two")}

    class Local(Echo):
        def step(self, action):
            return *super().step(action)[:4], sent

    env = PoolVectorEnv(Local, 1, num_workers=1)
    try:
        for infos in (env.reset(options=sent)[1], env.step(np.zeros(1, int))[4]):
            assert {key: infos[key][0] for key in sent} == sent
    finally:
        env.close()


class UnloadableError(Exception):
    """Its pickle lacks an argument of the constructor."""

    def __init__(self, a, b):
        super().__init__(a)


class TellsUnreadable(Telling):
    """Sends infos that the main process cannot load from the second step on."""

    def info(self):
        return {"error": UnloadableError(1, 2)} if self.count > 1 else {}


def test_infos_that_cannot_be_loaded_name_the_worker():
    before = len(os.listdir("/proc/self/fd"))
    envs = PoolVectorEnv(partial(TellsUnreadable, 0), 2, num_workers=1)
    envs.reset(seed=0)
    envs.step(np.zeros(2, np.int64))
    message = r"worker 0 .* cannot unpickle \(TypeError: .*missing 1 required"
    for call in (partial(envs.step, np.zeros(2, np.int64)), envs.reset):
        with pytest.raises(WorkerError, match=message) as caught:
            call()
        assert isinstance(caught.value.__cause__, TypeError)
    envs.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_close_drops_unread_infos_that_cannot_be_loaded():
    before = len(os.listdir("/proc/self/fd"))
    envs = PoolVectorEnv(partial(TellsUnreadable, 0), 2, num_workers=1)
    envs.reset(seed=0)
    envs.step(np.zeros(2, np.int64))
    envs.step_async(np.zeros(2, np.int64))
    wait_for_a_message(envs)
    with pytest.warns(UserWarning, match="`close` while waiting for a pending call to `step`"):
        envs.close()
    assert len(os.listdir("/proc/self/fd")) == before


class WorkersOwnError(Exception):
    """Can be loaded only in the process that raised it, as classes of a module that only workers import."""

    def __reduce__(self):
        return load_in, (os.getpid(), *self.args)


def load_in(process, text):
    if os.getpid() != process:
        raise ModuleNotFoundError("no module of the worker")
    return WorkersOwnError(text)


class RaisesUnreadable(Telling):
    """Raises at its first step what the main process cannot load."""

    def step(self, action):
        raise WorkersOwnError("the joint broke")


def test_failures_that_cannot_be_loaded_are_described():
    envs = PoolVectorEnv(partial(RaisesUnreadable, 0), 2, num_workers=1)
    envs.reset(seed=0)
    with pytest.raises(WorkerError, match="WorkersOwnError: the joint broke"):
        envs.step(np.zeros(2, np.int64))
    envs.close()


class Tensor:
    """Array that `Connection.send` does not send by value, as it does not those of torch."""

    def __init__(self, values):
        self.values = values


def refuse(tensor):
    raise RuntimeError("no descriptor can be sent")


ForkingPickler.register(Tensor, refuse)


class TellsTensors(Telling):
    """Its infos are tensors."""

    def info(self):
        return {"tensor": Tensor(self.count)}


def test_infos_are_sent_by_value():
    envs = PoolVectorEnv(partial(TellsTensors, 0), 2, num_workers=1)
    try:
        assert [tensor.values for tensor in envs.reset(seed=0)[1]["tensor"]] == [0, 0]
        assert [tensor.values for tensor in envs.step(np.zeros(2, int))[4]["tensor"]] == [1, 1]
    finally:
        envs.close()
