"""Closing of several environments: one that fails hides neither the others nor its error."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from envpool_bridge.envs.closing import close_each
from envpool_bridge.envs.gymnasium_env import GymnasiumSource
from envpool_bridge.envs.multi_agent_env import ParallelSource
from envpool_bridge.envs.stages import staged_source
from envpool_bridge.envs.vector_rows import VectorRowsSource
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


def maker(kind, closed, failing):
    numbers = iter(range(100))
    return lambda: kind(next(numbers), closed, failing)


def make_rows(owner, closed, failing):
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
    source = source_kind(maker(kind, closed, failing), "e", **({"overlap_rows": True} if owner == "threads" else {}))
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
