"""JAX environments behind the pool's protocol: the same steps as on a device, and what every source of rows must do."""

import dataclasses
import pickle
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envpool_bridge.envs.protocol import EpisodeReset, FirstRows, GymnasiumReset, StepRows
from envpool_bridge.errors import BadEnvOutputError, UserError, WorkerError
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec
from jaxsrl.envs.autoreset import env_run_key, reset_rows, step_rows
from jaxsrl.envs.cartpole import CartPole
from jaxsrl.envs.cpu_rows import JaxSource
from jaxsrl.envs.protocol import JaxStep

FIELDS = ("observation", "is_first", "reward", "terminated", "truncated", "valid")


@dataclasses.dataclass(frozen=True)
class Noise:
    """Observes noise plus the action; ends at random. `bad` is what it observes at its third step instead."""

    bad: float = 0.0
    reward: float = 1.0
    p_end: float = 0.1

    def spec(self):
        return EnvSpec("Noise", ArraySpec((2,), "float32", -9.0, 9.0), ArraySpec((1,), "float32", -1.0, 1.0))

    def reset(self, key):
        return jnp.int32(0), jax.random.uniform(key, (2,))

    def step(self, state, action, key):
        observation = jax.random.uniform(key, (2,)) + action
        observation = jnp.where((state == 2) & (self.bad != 0.0), self.bad, observation)
        ended = jax.random.uniform(jax.random.fold_in(key, 0)) < self.p_end
        return JaxStep(state + 1, observation, jnp.float32(self.reward) * observation[0], ended, state >= 11)


SOURCES = {"CartPole": JaxSource(partial(CartPole, 15)), "noise": JaxSource(Noise)}


def make_out(spec, num_rows) -> StepRows:
    flags = [np.ones(num_rows, bool) for _ in range(4)]  # stale contents: everything must be overwritten
    observation = np.full((num_rows, *spec.observation.shape), 77, spec.observation.dtype)
    return StepRows(observation, flags[0], np.full(num_rows, 77, np.float32), flags[1], flags[2], flags[3])


def random_actions(spec, num_steps, num_rows, seed=0):
    rng = np.random.default_rng(seed)
    if isinstance(spec.action, DiscreteSpec):
        return rng.integers(0, spec.action.num_values, (num_steps, num_rows)).astype(np.int32)
    return rng.uniform(-3, 3, (num_steps, num_rows, *spec.action.shape)).astype(np.float32)


def begin(source, row_ids, run_seed=5):
    rows, out = source.make_rows(row_ids, run_seed, False), make_out(source.spec(), len(row_ids))
    nothing = EpisodeReset((0,) * len(row_ids), (None,) * len(row_ids))
    rows.reset(nothing, FirstRows(out.observation, out.is_first))
    return rows, out


def play(rows, out, actions):
    steps = []
    for action in actions:
        rows.step(action, out)
        steps.append({name: getattr(out, name).copy() for name in FIELDS})
    return steps


@pytest.mark.parametrize("name", SOURCES)
def test_rows_on_the_cpu_do_to_the_bit_what_rows_on_a_device_do(name):
    source, row_ids = SOURCES[name], [3, 0, 8]
    env = source.make_jax_env()
    actions = random_actions(env.spec(), 50, 3)
    key = env_run_key(5)
    state = reset_rows(env, key, jnp.array(row_ids))
    rows, out = begin(source, row_ids)
    np.testing.assert_array_equal(out.observation, state.observation)
    expected = jax.jit(lambda state, actions: jax.lax.scan(partial(step_rows, env, key), state, actions)[1])(
        state, actions
    )
    for t, step in enumerate(play(rows, out, actions)):
        for field in FIELDS:
            np.testing.assert_array_equal(step[field], getattr(expected, field)[t], field)
    assert np.asarray(expected.terminated).any()
    assert np.asarray(expected.truncated).any()
    rows.close()
    rows.close()


@pytest.mark.parametrize("name", SOURCES)
def test_replayed_rows_continue_as_if_never_interrupted(name):
    source = SOURCES[name]
    actions = random_actions(source.spec(), 50, 4, seed=1)
    rows, out = begin(source, range(4))
    steps = play(rows, out, actions)
    ends = [t for t, step in enumerate(steps) if (step["terminated"] | step["truncated"]).any()]
    resets = [t for t, step in enumerate(steps) if step["is_first"].any()]
    again = source.make_rows(range(4), 5, False)
    for cut in (1, 17, ends[0] + 1, resets[0] + 1):  # also at an end that is not reset yet, and at a fresh reset
        episodes, since = [0] * 4, [[] for _ in range(4)]
        for action, step in zip(actions[:cut], steps[:cut], strict=True):
            for row in range(4):
                if step["valid"][row]:
                    since[row].append(action[row])
                else:
                    episodes[row], since[row] = episodes[row] + 1, []
        replay = tuple(np.array(done) if done else None for done in since)
        again.reset(EpisodeReset(tuple(episodes), replay), FirstRows(out.observation, out.is_first))
        np.testing.assert_array_equal(out.observation, steps[cut - 1]["observation"])
        np.testing.assert_array_equal(out.is_first, steps[cut - 1]["is_first"])
        for got, expected in zip(play(again, out, actions[cut:]), steps[cut:], strict=True):
            for field in FIELDS:
                np.testing.assert_array_equal(got[field], expected[field], field)


def test_jax_rows_reset_by_gymnasium_seeds():
    source = SOURCES["noise"]
    rows, out = source.make_rows(range(3), None, False), make_out(source.spec(), 3)
    other, other_out = source.make_rows(range(7, 9), None, False), make_out(source.spec(), 2)
    rows.reset(GymnasiumReset((10, 11, None)), FirstRows(out.observation, out.is_first))
    other.reset(GymnasiumReset((11, 10)), out=other_out)
    np.testing.assert_array_equal(out.observation[:2], other_out.observation[::-1])
    assert not other_out.valid.any()
    assert other_out.is_first.all()
    first = out.observation.copy()
    rows.reset(GymnasiumReset((None, 11, 12)), FirstRows(out.observation, out.is_first))
    np.testing.assert_array_equal(out.observation[1], first[1])
    assert (out.observation[[0, 2]] != first[[0, 2]]).all()
    other.reset(GymnasiumReset((None, None)), other_out)
    assert (other_out.observation[0] != other_out.observation[1]).all()  # each goes on with its own key
    with pytest.raises(UserError, match="take no reset options, got"):
        rows.reset(GymnasiumReset((1, 2, 3), {"low": 0}), FirstRows(out.observation, out.is_first))
    with pytest.raises(ValueError, match="made with a run_seed"):
        rows.reset(EpisodeReset((0,) * 3, (None,) * 3), FirstRows(out.observation, out.is_first))


def test_jax_rows_clip_actions_and_reject_nan():
    observed = []
    for action in (50.0, 1.0):  # the bound is 1
        rows, out = begin(SOURCES["noise"], [0, 4])
        rows.step(np.full((2, 1), action, np.float32), out)
        observed.append(out.observation.copy())
    np.testing.assert_array_equal(*observed)
    with pytest.raises(WorkerError, match="Noise, row 4, step 2: the policy's action is not finite"):
        rows.step(np.array([[0.0], [np.nan]], np.float32), out)


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (Noise(bad=np.nan, p_end=0.0), "row 0, step 3: bad observation: expected at least -9.0"),
        (Noise(bad=10.0, p_end=0.0), "row 0, step 3: bad observation: expected at most 9.0"),
        (Noise(reward=np.inf, p_end=0.0), "row 0, step 1: bad reward: expected a finite float32, got inf"),
    ],
)
def test_bad_values_are_refused_with_row_and_step(env, message):
    rows, out = begin(JaxSource(lambda: env), [0], run_seed=1)
    spec = env.spec()
    steps = play(rows, out, np.zeros((5, 1, *spec.action.shape), np.float32))
    observation, reward = (np.stack([step[name] for step in steps]) for name in ("observation", "reward"))
    with pytest.raises(BadEnvOutputError, match=message):
        rows.verify(observation, reward)


@dataclasses.dataclass(frozen=True)
class Count:
    """Observes the number of steps, declares fewer than 3."""

    def spec(self):
        return EnvSpec("Count", DiscreteSpec(3), DiscreteSpec(2))

    def reset(self, key):
        return jnp.int32(0), jnp.int32(0)

    def step(self, state, action, key):
        state = state + action
        return JaxStep(state, state, jnp.float32(0), state < 0, state < 0)


def test_discrete_observations_outside_their_range_are_refused():
    rows, out = begin(JaxSource(Count), [6, 9])
    steps = play(rows, out, np.array([[1, 1], [0, 1], [0, 1]], np.int32))
    observation = np.stack([step["observation"] for step in steps])
    rows.verify(observation[:2], np.zeros((2, 2), np.float32))
    with pytest.raises(
        BadEnvOutputError, match="Count, row 9, step 3: bad observation: expected 0 <= value < 3, got 3"
    ):
        rows.verify(observation, np.zeros((3, 2), np.float32))


def test_an_environment_that_raises_is_named():
    class Broken(Noise):
        def step(self, state, action, key):
            raise ZeroDivisionError("inside")

    rows, out = begin_unchecked(Broken())
    with pytest.raises(WorkerError, match="Noise, rows 2 to 3, step 1: ZeroDivisionError: inside"):
        rows.step(np.zeros((2, 1), np.float32), out)


def begin_unchecked(env):
    rows, out = JaxSource(lambda: env).make_rows([2, 3], 0, False), make_out(env.spec(), 2)
    rows.reset(EpisodeReset((0, 0), (None, None)), FirstRows(out.observation, out.is_first))
    return rows, out


def test_the_source_can_be_sent_to_a_worker():
    source = pickle.loads(pickle.dumps(SOURCES["CartPole"]))
    assert source.spec() == SOURCES["CartPole"].spec()


def test_rows_stay_on_the_cpu_device_whatever_the_default_is():
    with jax.default_device(jax.devices()[2]):
        rows, out = begin(SOURCES["CartPole"], [0, 1])
        rows.step(np.zeros(2, np.int32), out)
        assert {leaf.device for leaf in jax.tree.leaves(rows._state)} == {jax.devices("cpu")[0]}


def test_env_keys_differ_from_action_and_update_keys():
    # What a run does with its seed: see jaxsrl.run_plan.
    base = jax.random.key(3)
    theirs = [*jax.random.split(base, 3), base, jax.random.fold_in(base, 0)]
    env = env_run_key(3)
    ours = [env, *(jax.random.fold_in(env, row) for row in range(4))]
    bits = {tuple(jax.random.key_data(key).tolist()) for key in (*theirs[:4], *ours)}
    assert len(bits) == 9
