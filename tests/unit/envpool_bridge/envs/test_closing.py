"""Closing of several environments: one that fails hides neither the others nor its error."""

import contextlib

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from envpool_bridge.envs.closing import close_each
from envpool_bridge.envs.gymnasium_env import GymnasiumSource
from envpool_bridge.envs.multi_agent_env import ParallelSource
from envpool_bridge.envs.protocol import EpisodeReset
from envpool_bridge.envs.stages import staged_source
from envpool_bridge.envs.vector_env import VectorSource
from envpool_bridge.envs.vector_rows import VectorRowsSource
from envpool_bridge.errors import UserError, WorkerError
from envpool_bridge.pool import EnvPool, PoolOptions
from envpool_bridge.shm.layout import PoolShape
from envpool_bridge.worker.isolation import IsolatedRows


class Closes(gymnasium.Env):
    """Notes that it was closed, and fails if it is the environment that a test names; also an environment of one agent."""

    possible_agents = agents = ("only",)

    def __init__(self, number, closed, failing):
        self.number, self.closed, self.failing = number, closed, failing

    def close(self):
        self.closed.append(self.number)
        if self.number in self.failing:
            raise OSError(f"cannot close {self.number}")


class Alone(Closes):
    observation_space, action_space = spaces.Box(-1.0, 1.0, (2,), np.float32), spaces.Discrete(2)


class Agents(Closes):
    def observation_space(self, agent):
        return Alone.observation_space

    def action_space(self, agent):
        return Alone.action_space


def limited(kind, most, closed, failing=()):
    """Returns a function that makes environments until a licence server has no licence left."""
    numbers = iter(range(most))

    def make():
        number = next(numbers, None)
        if number is None:
            raise LookupError("no licence left")
        return kind(number, closed, failing)

    return make


def make_rows(owner, closed, failing, most=100):
    """Makes rows or an environment with three environments, of which those in `failing` fail to close."""
    kind = Agents if owner == "agents" else Alone
    if owner == "stages":
        sources = [GymnasiumSource(lambda n=n: Alone(n, closed, failing), "e") for n in range(3)]
        made = staged_source(sources, "e").make_env()
        for stage in range(3):
            made._at(stage)
        closed.clear()  # the environments that gave the spaces
        return made
    source_kind = ParallelSource if owner == "agents" else GymnasiumSource
    source = source_kind(
        limited(kind, most, closed, failing), "e", **({"overlap_rows": True} if owner == "threads" else {})
    )
    if owner == "isolated":
        spec = GymnasiumSource(lambda: Alone(-1, [], ()), "e").spec()
        return IsolatedRows(source, spec, range(3), 0, (1, 60.0))
    return source.make_rows(range(3), 0, False)


@pytest.mark.parametrize("owner", ["rows", "threads", "agents", "stages", "isolated"])
def test_one_failing_close_leaves_no_environment_open(owner):
    closed, failing = [], set()
    rows = make_rows(owner, closed, failing)
    failing.update({0, 2})
    with pytest.raises(OSError, match="cannot close [02]"):
        rows.close()
    assert sorted(closed) == [0, 1, 2]
    if owner != "isolated":
        rows.close()  # idempotent
        assert sorted(closed) == [0, 1, 2]


@pytest.mark.parametrize("owner", ["rows", "threads", "agents", "isolated"])
def test_environments_made_before_a_failure_are_closed(owner):
    closed = []
    with pytest.raises(LookupError, match="no licence left"):
        make_rows(owner, closed, {0}, most=2)  # the first one fails to close, too
    assert sorted(closed) == [0, 1]


def test_a_vector_that_does_not_fit_is_closed():
    closed = []

    class Vector(gymnasium.vector.VectorEnv):
        metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012
        spec = None

        def close(self, **kwargs):
            closed.append(True)

    with pytest.raises(UserError, match="NEXT_STEP"):
        VectorSource(lambda num_envs: Vector()).make_rows(range(3), 0, False)
    assert closed == [True]


def test_an_error_of_close_does_not_hide_that_of_a_constructor():
    closed = []

    def fail():
        raise LookupError("no map")

    makers = (lambda: Alone(0, closed, {0}), fail, lambda: Alone(2, closed, ()))
    spec, spaces_of_rows = GymnasiumSource(makers[2], "e").spec(), (Alone.observation_space, Alone.action_space)
    closed.clear()  # the environment that gave the spec
    source = VectorRowsSource(makers, spec, spaces_of_rows, True, AutoresetMode.NEXT_STEP, False, False)
    reports = source.make_rows(range(3), None, True).infos
    assert closed == [0, 2]
    assert [report.failure is not None for report in reports] == [False, True, False]
    assert "LookupError: no map" in reports[1].failure.text


def test_the_first_error_is_raised():
    closed = []
    with pytest.raises(OSError, match="cannot close 1"):
        close_each([Alone(number, closed, {1, 2}) for number in range(4)])
    assert closed == [0, 1, 2, 3]
    close_each([])


class Licensed(Alone):
    """Environment that holds a file, and fails at its first step, while it is open; at most `most` may be open."""

    def __init__(self, directory, most):
        self.path = directory / str(len(list(directory.iterdir())))
        if int(self.path.name) >= most:
            raise LookupError("no licence left")
        self.path.touch()

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        raise LookupError("lost the simulator")

    def close(self):
        self.path.unlink(missing_ok=True)


def play_two_lanes(pool):
    """Steps one worker's two lanes once."""
    with contextlib.closing(pool):
        pool.start([EpisodeReset((0, 0), (None, None))] * 2)
        for lane in (0, 1):
            assert pool.wait_lane(lane, 60.0)
            pool.post_actions(lane)
        assert pool.wait_lane(0, 60.0)


@pytest.mark.parametrize(("most", "error"), [(3, "no licence left"), (5, "lost the simulator")])
def test_a_worker_that_fails_closes_its_environments(tmp_path, most, error):
    source, shape = GymnasiumSource(lambda: Licensed(tmp_path, most), "e"), PoolShape(1, 2, 1, 2, 4, 2)
    pool = EnvPool(source, shape, PoolOptions(run_seed=0))
    with pytest.raises(WorkerError, match=error):
        play_two_lanes(pool)
    assert not list(tmp_path.iterdir())
