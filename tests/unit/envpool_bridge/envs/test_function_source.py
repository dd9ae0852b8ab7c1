"""Functions stand for sources: each kind of callable, each kind of environment, and names that stay the same."""

import threading
from functools import partial

import gymnasium
import numpy as np
import pytest

from envpool_bridge.envs.function_name import function_name
from envpool_bridge.envs.function_source import as_source
from envpool_bridge.envs.gymnasium_env import GymnasiumSource
from envpool_bridge.envs.multi_agent_env import ParallelSource
from envpool_bridge.envs.probes.single_agent import MatchObservation
from envpool_bridge.envs.protocol import EpisodeReset
from envpool_bridge.errors import UserError
from envpool_bridge.pool import EnvPool, PoolOptions
from envpool_bridge.shm.layout import PoolShape
from envpool_bridge.vector_env import PoolVectorEnv
from tests.support.scripted_agents import Scripted

START = 3.0


class Shows(gymnasium.Env):
    """Its only observation is the number that it was made with."""

    observation_space = gymnasium.spaces.Box(0, 100, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, number=START):
        self.number = number

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.array([self.number], np.float32), {}

    def step(self, action):
        return np.array([self.number], np.float32), 1.0, False, False, {}


class Maker:
    """Called, it makes an environment."""

    def __init__(self, number):
        self.number = number

    def __call__(self):
        return Shows(self.number)

    def make(self):
        return Shows(self.number + 1)


def make_shows():
    return Shows()


def closure(number):
    def make():
        return Shows(number)

    return make


def local_class(number):
    class Local(Shows):
        def __init__(self):
            super().__init__(number)

    return Local


CALLABLES = {
    "function": (make_shows, START),
    "class": (Shows, START),
    "lambda": (lambda: Shows(START + 1), START + 1),
    "closure": (closure(5.0), 5.0),
    "partial": (partial(Shows, number=6.0), 6.0),
    "partial of a lambda": (partial(lambda number: Shows(number), 7.0), 7.0),
    "local class": (local_class(8.0), 8.0),
    "object": (Maker(9.0), 9.0),
    "method": (Maker(9.0).make, 10.0),
}


@pytest.mark.parametrize("kind", CALLABLES)
def test_a_pool_steps_the_environments_of_every_kind_of_callable(kind):
    make, number = CALLABLES[kind]
    with EnvPool(make, PoolShape(1, 1, 1, 2, 4, 2), PoolOptions(run_seed=0)) as pool:
        pool.start([EpisodeReset((0, 0), (None, None))])
        assert pool.wait_started(60.0)
        assert pool.views[0].observation[0].tolist() == [[number], [number]]


@pytest.mark.parametrize("kind", ["lambda", "closure", "local class"])
def test_pool_vector_env_accepts_async_vector_env_arguments(kind):
    make, number = CALLABLES[kind]
    env = PoolVectorEnv(make, 2, num_workers=2)
    try:
        assert env.reset()[0].tolist() == [[number], [number]]
    finally:
        env.close()


def test_each_kind_of_environment_gets_its_adapter():
    pettingzoo = pytest.importorskip("pettingzoo.classic.tictactoe_v3")
    gymnasium_source, parallel, turns = as_source(Shows), as_source(lambda: Scripted()), as_source(pettingzoo.env)
    assert isinstance(gymnasium_source, GymnasiumSource)
    assert gymnasium_source.spec().env_id == "Shows"
    assert isinstance(parallel, ParallelSource)
    assert parallel.spec().rows_per_env == len(Scripted().possible_agents)
    assert isinstance(turns, ParallelSource)
    assert turns.spec().rows_per_env == 2


def test_as_source_returns_a_source_unchanged():
    source = GymnasiumSource(MatchObservation)
    assert as_source(source) is source


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("CartPole-v1", "expected an EnvConfig, a source, or a function that makes one environment, got 'CartPole-v1'"),
        (lambda: None, "<lambda> does not make an environment: expected one of Gymnasium or PettingZoo, got NoneType"),
    ],
)
def test_as_source_rejects_other_functions(given, says):
    with pytest.raises(UserError) as raised:
        as_source(given)
    assert says in str(raised.value)


def test_unpicklable_function_is_rejected_with_the_reason():
    lock = threading.Lock()

    def make():
        return Shows(0.0 if lock else 1.0)

    with pytest.raises(UserError) as raised:
        EnvPool(make, PoolShape(1, 1, 1, 2, 4, 2))
    assert "test_unpicklable_function_is_rejected_with_the_reason.<locals>.make" in str(raised.value)
    assert "cannot pickle '_thread.lock' object" in str(raised.value)


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (make_shows, "make_shows"),
        (closure(1.0), "closure.<locals>.make"),
        (partial(Shows, 1.0, number="x"), "Shows(1.0, number='x')"),
        (partial(partial(Shows, object()), seed=None), "Shows(..., seed=None)"),
        (Maker(1.0), "Maker"),
        (Maker(1.0).make, "Maker.make"),
    ],
)
def test_names_are_module_and_qualname(function, name):
    assert function_name(function) == f"{__name__}:{name}"
