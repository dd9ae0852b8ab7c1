"""A StopIteration of an environment's step, as of `next()` at the end of its data: an exception like every other."""

import cloudpickle
import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from envpool_bridge.envs.concurrent_step import AsyncStep, Halves, ThreadedStep
from envpool_bridge.envs.gymnasium_env import GymnasiumSource
from envpool_bridge.envs.protocol import FirstRows, GymnasiumReset, StepRows
from envpool_bridge.envs.vector_requests import MaskedReset
from envpool_bridge.envs.vector_rows import VectorRowsSource
from envpool_bridge.errors import WorkerError
from envpool_bridge.vector_env.arguments import array_spec, row_spec

LENGTHS = (9, 2, 9, 2)
"""Steps that each row has data for."""


class Data(gymnasium.Env):
    """Reads an iterator of `length` steps; observes how many it has taken."""

    observation_space = spaces.Box(0.0, 100.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, length):
        self.length = length

    def reset(self, *, seed=None, options=None):
        self.rest = iter(range(1, self.length + 1))
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.full(1, next(self.rest), np.float32), 1.0, False, False, {}


class DataInHalves(Data):
    def step(self, action):
        self.step_async(action)
        return self.step_wait()

    def step_async(self, action):
        pass

    def step_wait(self):
        return super().step(0)


def results_of(num_rows):
    flags = [np.ones(num_rows, bool) for _ in range(4)]
    return StepRows(np.zeros((num_rows, 1), np.float32), flags[0], np.zeros(num_rows, np.float32), *flags[1:])


def step(rows, out):
    out.prepare()
    rows.step(np.zeros(rows.num_rows, np.int32), out)


@pytest.mark.parametrize(
    ("kind", "overlap_rows", "what"),
    [(Data, False, "step"), (Data, True, "step"), (DataInHalves, False, "step_wait of step")],
)
def test_the_first_row_that_raises_it_is_named(kind, overlap_rows, what):
    lengths = iter(LENGTHS)
    source = GymnasiumSource(lambda: kind(next(lengths)), "Data", overlap_rows=overlap_rows)
    rows, out = source.make_rows(range(20, 24), None, False), results_of(4)
    rows.reset(GymnasiumReset((None,) * 4), FirstRows(out.observation, out.is_first))
    for _ in range(2):
        step(rows, out)
    with pytest.raises(WorkerError, match=f"Data, row 21, {what} 3: StopIteration: .*next"):
        step(rows, out)
    rows.close()


@pytest.mark.parametrize("kind", [Data, DataInHalves])
def test_other_rows_of_a_vector_environment_complete_the_step(kind):
    made = []

    def make(length):
        made.append(kind(length))
        return made[-1]

    makers = tuple(lambda length=length: make(length) for length in LENGTHS)
    observed, acted = Data.observation_space, Data.action_space
    spec = row_spec("Data", array_spec("observation", observed, "Data"), array_spec("action", acted, "Data"))
    source = VectorRowsSource(makers, spec, (observed, acted), True, AutoresetMode.NEXT_STEP, False, False)
    rows, out = source.make_rows(range(4), None, True), results_of(4)
    reset = MaskedReset((None,) * 4, pickled_options=(cloudpickle.dumps(None),) * 4)
    for _ in range(2):  # a reset continues after the exceptions
        rows.reset(reset, out)
        for _ in range(3):
            step(rows, out)
        failures = [report.failure for report in rows.infos]
        assert failures[0] is failures[2] is None
        assert "Data, row 1, step" in failures[1].text
        assert "StopIteration" in failures[1].text
        # Steps in halves report the first of several exceptions.
        assert (failures[3] is None) == (kind is DataInHalves)
        assert [next(env.rest, None) for env in made] == [4, None, 4, None]
    rows.close()


def threaded(functions):
    return ThreadedStep(len(functions))


def in_halves(functions):
    return AsyncStep(
        functions, [Halves(lambda _: None, lambda function=function: function(0)) for function in functions]
    )


@pytest.mark.parametrize("make", [threaded, in_halves])
def test_an_executor_raises_it_as_a_map_does(make):
    iterators = [iter("abc"), iter(""), iter("de")]
    functions = [lambda _, iterator=iterator: next(iterator) for iterator in iterators]
    steps = make(functions)
    results = iter(steps(functions, range(3)))
    assert next(results) == "a"
    with pytest.raises(StopIteration):
        next(results)
    steps.close()
