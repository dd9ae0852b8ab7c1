"""PoolVectorEnv takes the place of AsyncVectorEnv: arguments, autoreset modes, calls, attributes, errors, spaces, wrappers."""

import gc
import math
import multiprocessing
import os
import weakref
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit

from envpool_bridge.errors import BadEnvOutputError, UserError, WorkerError
from envpool_bridge.vector_env import PoolVectorEnv


class Counter(gymnasium.Env):
    """Counts its steps from `start`; the episode ends after `length` of them."""

    action_space = spaces.Discrete(3)

    def __init__(self, start=0, length=4, high=1000.0):
        self.observation_space = spaces.Box(-1.0, high, (2,), np.float32)
        self.metadata = {"render_modes": ["rgb_array"]}
        self.start, self.length, self.render_mode = start, length, "rgb_array"
        self.count = -1

    def observation(self):
        return np.array([self.start, self.count], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if options and options.get("fail") == self.start:
            raise LookupError(f"no level {self.start}")
        self.count = 0
        return self.observation(), {"level": (options or {}).get("level", -1)}

    def step(self, action):
        if action == 2:
            raise ZeroDivisionError(f"divided by {self.start}")
        self.count += 1
        return self.observation(), float(action), self.count >= self.length, False, {"count": self.count}

    def render(self):
        return np.full((2, 2, 3), self.start, np.uint8)

    def scaled(self, factor, *, offset=0):
        return self.start * factor + offset


def counters(lengths=(2, 3, 5, 9)):
    return [lambda start=start, length=length: Counter(start, length) for start, length in enumerate(lengths)]


@pytest.fixture
def make():
    """Makes vector environments that are closed after the test."""
    made = []

    def make_one(*arguments, **keywords):
        keywords.setdefault("timeout_seconds", 30.0)
        made.append(PoolVectorEnv(*arguments, **keywords))
        return made[-1]

    yield make_one
    for env in made:
        env.close()


def assert_same_step(ours, theirs):
    for mine, other in zip(ours[:-1], theirs[:-1], strict=True):
        np.testing.assert_array_equal(mine, other, strict=True)
    assert data_equivalence(ours[-1], theirs[-1], exact=True), (ours[-1], theirs[-1])


@pytest.mark.parametrize(("num_workers", "lanes_per_worker"), [(2, 1), (1, 2)])
@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_autoreset_modes_equal_sync_vector_env(make, mode, num_workers, lanes_per_worker):
    ours = make(counters(), autoreset_mode=mode, num_workers=num_workers, lanes_per_worker=lanes_per_worker)
    theirs = SyncVectorEnv(counters(), autoreset_mode=mode)
    rng = np.random.default_rng(0)
    assert_same_step(ours.reset(seed=5, options={"level": 3}), theirs.reset(seed=5, options={"level": 3}))
    for _ in range(40):
        actions = rng.integers(0, 2, 4)
        mine, other = ours.step(actions), theirs.step(actions)
        assert_same_step(mine, other)
        ended = other[2] | other[3]
        if mode is AutoresetMode.DISABLED and ended.any():
            options = {"level": 7, "reset_mask": ended}
            assert_same_step(ours.reset(options=options), theirs.reset(options=dict(options)))
            assert set(options) == {"level", "reset_mask"}  # the caller's dict is left alone


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_time_limits_hold_in_every_autoreset_mode(make, mode):
    make_env = partial(gymnasium.make, "CartPole-v1", max_episode_steps=5)
    ours, theirs = make(make_env, 2, autoreset_mode=mode), SyncVectorEnv([make_env] * 2, autoreset_mode=mode)
    assert_same_step(ours.reset(seed=1), theirs.reset(seed=1))
    for step in range(17):
        assert_same_step(ours.step(np.full(2, step % 2)), theirs.step(np.full(2, step % 2)))


def test_disabled_autoreset_truncates_until_the_reset(make):
    ours = make(partial(TimeLimit, Counter(length=99), 3), 1, autoreset_mode="Disabled")
    ours.reset()
    assert [bool(ours.step(np.zeros(1, int))[3][0]) for _ in range(5)] == [False, False, True, True, True]


def test_calls_and_attributes_equal_sync_vector_env(make):
    limited = [lambda make_env=make_env: TimeLimit(make_env(), 6) for make_env in counters((20, 20, 20, 20))]
    ours, theirs = make(limited, num_workers=2), SyncVectorEnv(limited)
    for env in (ours, theirs):
        env.set_attr("start", [4, 3, 2, 1])
        env.reset(seed=11)
    for step in range(9):
        assert_same_step(ours.step(np.ones(4, int)), theirs.step(np.ones(4, int)))
        for name in ("start", "count", "_elapsed_steps", "np_random_seed"):
            assert ours.get_attr(name) == theirs.get_attr(name)
        assert ours.call("scaled", 3, offset=step) == theirs.call("scaled", 3, offset=step)
        np.testing.assert_array_equal(ours.render(), theirs.render())
        if step == 2:
            for env in (ours, theirs):
                env.set_attr("_max_episode_steps", [4, 8, 6, 6])
    assert ours.np_random_seed == (11, 12, 13, 14)
    assert [rng.integers(99) for rng in ours.np_random] == [rng.integers(99) for rng in theirs.np_random]


def test_call_async_returns_results_of_lambdas(make):
    env = make(counters(), num_workers=2)
    env.call_async("scaled", 2)
    with pytest.raises(AlreadyPendingCallError):
        env.step(np.zeros(4, int))
    assert env.call_wait(timeout=20.0) == (0, 2, 4, 6)
    env.set_attr("scaled", lambda factor: -factor)
    assert env.call("scaled", 5) == (-5,) * 4


def test_large_arguments_and_results_of_calls_arrive(make):
    env = make(counters(), num_workers=2)
    image = np.arange(3_000_000)
    env.set_attr("image", [image + row for row in range(4)])
    for row, values in enumerate(env.get_attr("image")):
        np.testing.assert_array_equal(values, image + row)


def test_each_function_makes_its_own_row(make):
    env = make([partial(Counter, 7), lambda: Counter(8, 2), lambda: TimeLimit(Counter(9), 3)])
    assert env.num_envs == 3
    assert env.reset()[0].tolist() == [[7.0, 0.0], [8.0, 0.0], [9.0, 0.0]]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((Counter,), "needs num_envs"),
        (([],), "must be functions"),
        (([Counter], 3), "num_envs is 3, but there are 1"),
        (([Counter], True), "pass further arguments by name"),
    ],
)
def test_wrong_functions_are_rejected(arguments, says):
    with pytest.raises(UserError, match=says):
        PoolVectorEnv(*arguments)


@pytest.mark.parametrize(
    ("keywords", "error", "says"),
    [
        ({"worker": print}, UserError, "pass worker=None"),
        ({"max_concurrency": 0}, ValueError, "max_concurrency must be a positive"),
        ({"max_concurrency": 1, "num_workers": 2}, UserError, "at most max_concurrency"),
        ({"num_workers": 0}, UserError, "num_workers must be a positive integer, got 0"),
        ({"lanes_per_worker": 0}, UserError, "lanes_per_worker must be a positive integer, got 0"),
        ({"observation_mode": "other"}, ValueError, "'same' or 'different' or tuple"),
        ({"observation_mode": (1, 2)}, TypeError, "pair of spaces"),
        ({"autoreset_mode": "Never"}, ValueError, "Never"),
    ],
)
def test_wrong_options_are_rejected(keywords, error, says):
    with pytest.raises(error, match=says):
        PoolVectorEnv(Counter, 4, **keywords)


class Unhashable(partial):
    """A function that no set can contain."""

    __hash__ = None


@pytest.mark.parametrize(("starts", "has_spec"), [((3, 3), True), ((3, 4), False)])
def test_functions_need_no_hash(make, starts, has_spec):
    functions = {start: Unhashable(gymnasium.make, "Pendulum-v1", g=float(start)) for start in starts}
    env = make([functions[start] for start in starts])
    assert env.get_attr("g") == starts
    assert (env.spec is not None) is has_spec


def test_max_concurrency_limits_the_workers(make):
    env = make(Counter, 4, max_concurrency=1)
    assert env._lanes.pool.shape.num_workers == 1


def test_rows_with_other_spaces_are_rejected():
    with pytest.raises(RuntimeError, match="observation spaces are not equivalent") as raised:
        PoolVectorEnv([Counter, partial(Counter, 1, 4, 5.0)])
    assert "row 1, making the environment" in str(raised.value.__cause__)


def test_observation_mode_different_accepts_other_bounds(make):
    functions = [partial(Counter, 1, 9, 5.0), partial(Counter, 50, 9, 60.0)]
    env = make(functions, observation_mode="different")
    assert env.observation_space == SyncVectorEnv(functions, observation_mode="different").observation_space
    assert env.reset()[0].tolist() == [[1.0, 0.0], [50.0, 0.0]]


def test_exception_of_a_constructor_keeps_its_class():
    main = os.getpid()

    def make_env():
        if os.getpid() != main:
            raise FileNotFoundError("no map")
        return Counter()

    with pytest.raises(FileNotFoundError, match="no map") as raised:
        PoolVectorEnv(make_env, 2)
    assert "in make_env" in str(raised.value.__cause__)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_environments_continue_after_exceptions(make, mode):
    env = make(counters((9,) * 4), num_workers=2, autoreset_mode=mode)
    env.reset()
    with pytest.raises(ZeroDivisionError, match="divided by 1") as raised:
        env.step(np.array([0, 2, 0, 2]))
    assert isinstance(raised.value.__cause__, WorkerError)
    for row in (1, 3):
        assert f"Counter, row {row}, step 1: ZeroDivisionError: divided by {row}" in str(raised.value.__cause__)
    assert env.get_attr("count") == (1, 0, 1, 0)  # the other rows have stepped
    with pytest.raises(LookupError, match="no level 2"):
        env.reset(options={"fail": 2})
    with pytest.raises(AttributeError, match="missing"):
        env.get_attr("missing")
    with pytest.raises(TypeError, match="scaled"):
        env.call("scaled")
    assert env.reset()[0].tolist() == [[row, 0.0] for row in range(4)]
    assert env.step(np.ones(4, int))[1].tolist() == [1.0] * 4


class UnpicklableError(Exception):
    def __init__(self, first, second):
        super().__init__(first)


def test_exception_that_cannot_be_pickled_is_a_worker_error(make):
    class Raises(Counter):
        def step(self, action):
            raise UnpicklableError("broken", 1)

    env = make(Raises, 2)
    env.reset()
    with pytest.raises(WorkerError, match="UnpicklableError: broken"):
        env.step(np.zeros(2, int))


def test_operations_out_of_order_raise_gymnasiums_errors(make):
    env = make(Counter, 2)
    for wait in (env.reset_wait, env.step_wait, env.call_wait):
        with pytest.raises(NoAsyncCallError, match="without any prior call to `.*_async`"):
            wait()
    env.reset_async(seed=3)
    for operation in (
        env.reset_async,
        partial(env.step_async, [0, 0]),
        partial(env.call_async, "render"),
        partial(env.set_attr, "start", 1),
        partial(env.send, [0, 0]),
        env.recv,
    ):
        with pytest.raises(AlreadyPendingCallError, match="pending call to `reset` to complete: call `reset_wait`"):
            operation()
    assert env.reset_wait()[0].tolist() == [[0.0, 0.0]] * 2
    env.close()
    for operation in (env.reset, partial(env.step, [0, 0]), env.render, env.recv, partial(env.set_attr, "start", 1)):
        with pytest.raises(ClosedEnvironmentError, match="closed"):
            operation()


def test_wrong_actions_are_rejected_before_any_step(make):
    env = make(Counter, 4)
    env.reset()
    with pytest.raises(TypeError, match="got int: one value for 4 environments"):
        env.step(0)
    for actions in ([0] * 3, [0] * 5, np.zeros((4, 1), int), np.zeros(4), [0, 0, 2**32 + 1, 0]):
        with pytest.raises(UserError, match="expected actions as action_space.sample"):
            env.step(actions)
    assert env.get_attr("count") == (0,) * 4


@pytest.mark.parametrize(
    ("mask", "error"),
    [
        ([True, False], TypeError),
        (np.array([1, 0]), TypeError),
        (np.array([True]), ValueError),
        (np.array([[True, False]]), ValueError),
        (np.array([False, False]), ValueError),
    ],
)
def test_wrong_reset_masks_are_rejected(make, mask, error):
    env = make(Counter, 2)
    with pytest.raises(error, match="reset_mask"):
        env.reset(options={"reset_mask": mask})
    env.reset()


def test_waits_time_out_and_can_be_resumed(make):
    class Slow(Counter):
        def step(self, action):
            import time

            time.sleep(0.8)
            return super().step(action)

    env = make(Slow, 2, num_workers=2)
    env.reset()
    env.step_async([1, 1])
    with pytest.raises(multiprocessing.TimeoutError):
        env.step_wait(timeout=0.05)
    assert env.step_wait()[1].tolist() == [1.0, 1.0]


@pytest.mark.slow
@pytest.mark.parametrize("timeout", [math.inf, 1e9])
def test_long_waits_end_with_the_workers(make, timeout):
    class ClosesLate(Counter):
        def close(self):
            import time

            time.sleep(0.3)

    env = make(ClosesLate, 2, num_workers=2, timeout_seconds=timeout)
    env.reset_async()
    assert env.reset_wait(timeout)[0].shape == (2, 2)
    env.send(np.ones(2, int))
    assert env.recv()[1].tolist() == [1.0, 1.0]
    env.close(timeout=timeout)


def test_a_lost_vector_env_ends_its_workers():
    env = PoolVectorEnv(Counter, 2, num_workers=1)
    closed, pool = weakref.ref(env), env._lanes.pool
    del env
    gc.collect()
    assert closed() is None
    assert pool._closed


@pytest.mark.parametrize("copy", [True, False])
def test_observations_are_copies_unless_asked_otherwise(make, copy):
    env = make(Counter, 2, copy=copy)
    first, _ = env.reset()
    assert np.shares_memory(first, env._lanes.pool.views[0].observation) is not copy
    kept = first.copy()
    for _ in range(3):
        env.step(np.zeros(2, int))
    if copy:
        np.testing.assert_array_equal(first, kept)


def test_wrong_output_still_names_the_row(make):
    class Bad(Counter):
        def observation(self):
            return np.array([self.start, np.nan if self.start == 2 else self.count], np.float32)

    env = make([partial(Bad, start) for start in range(4)], num_workers=2, strict=True)
    with pytest.raises(BadEnvOutputError, match="row 2"):
        env.reset()


def test_apply_calls_a_function_with_the_chosen_environments():
    env = PoolVectorEnv([partial(gymnasium.make, "CartPole-v1", max_episode_steps=n) for n in (3, 4, 5)], num_workers=1)
    try:
        assert env.apply(lambda one: one.spec.max_episode_steps, [2, 0]) == (5, 3)
        assert env.apply(lambda one: one.spec.max_episode_steps) == (3, 4, 5)
        with pytest.raises(ValueError, match=r"indices must lie in \[0, 3\), got \[3\]"):
            env.apply(id, [3])
    finally:
        env.close()
