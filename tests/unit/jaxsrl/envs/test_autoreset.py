"""NEXT_STEP autoreset of JAX environments against loops over single environments."""

import dataclasses
from functools import partial

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from envpool_bridge.errors import BadEnvOutputError
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec
from jaxsrl.envs.autoreset import reset_rows, step_rows
from jaxsrl.envs.cartpole import CartPole
from jaxsrl.envs.protocol import JaxStep, validate_env

RUN_KEY = jax.random.key(7)


@dataclasses.dataclass(frozen=True)
class Echo:
    """Observes (random bits of the key it was given, the clipped action); ends after action 1, is cut after 4 steps."""

    def spec(self):
        return EnvSpec("Echo", ArraySpec((2,), "float32"), ArraySpec((), "float32", -2.0, 2.0))

    def reset(self, key):
        return 0, jnp.stack([jax.random.uniform(key), 0.0])

    def step(self, state, action, key):
        observation = jnp.stack([jax.random.uniform(key), action])
        return JaxStep(state + 1, observation, action, action == 1.0, state + 1 >= 4)


def play(env, num_rows, actions, row_ids=None, run_key=RUN_KEY):
    """The first state, and the outputs of a scan over actions [T, B]."""
    ids = jnp.arange(num_rows) if row_ids is None else jnp.asarray(row_ids)

    @jax.jit
    def run(run_key, ids, actions):
        first = reset_rows(env, run_key, ids)
        return first, jax.lax.scan(partial(step_rows, env, run_key), first, actions)[1]

    return jax.device_get(run(run_key, ids, jnp.asarray(actions)))


def echo_loop(row_id, actions):
    """What one row of Echo must give, one step at a time, in plain Python."""

    def draw(episode, step):
        key = jax.random.fold_in(jax.random.fold_in(jax.random.fold_in(RUN_KEY, row_id), episode), step)
        return float(jax.random.uniform(key))

    episode, step, ended, rows = 0, 0, False, []
    for action in actions:
        if ended:
            episode, step, ended = episode + 1, 0, False
            rows.append(((draw(episode, 0), 0.0), True, 0.0, False, False, False))
            continue
        step += 1
        clipped = float(np.clip(action, -2, 2))
        terminated, truncated = clipped == 1.0, step == 4
        ended = terminated or truncated
        rows.append(((draw(episode, step), clipped), False, clipped, terminated, truncated, True))
    return rows


def test_rows_do_what_a_loop_over_each_of_them_does():
    actions = np.random.default_rng(0).choice(np.float32([0.5, 1.0, -3.0, 3.0]), (11, 3), p=[0.4, 0.3, 0.2, 0.1])
    first, out = play(Echo(), 3, actions, row_ids=[5, 0, 9])
    assert first.is_first.all()
    for row, row_id in enumerate([5, 0, 9]):
        np.testing.assert_array_equal(first.observation[row], (np.float32(echo_draw(row_id)), 0))
        for t, expected in enumerate(echo_loop(row_id, actions[:, row])):
            for field, value in zip(out._fields, expected, strict=True):
                np.testing.assert_array_equal(getattr(out, field)[t, row], np.asarray(value, np.float32), field)
    assert out.truncated.any()
    assert out.terminated.any()
    assert (~out.valid).sum() > 5


def echo_draw(row_id):
    return jax.random.uniform(jax.random.fold_in(jax.random.fold_in(jax.random.fold_in(RUN_KEY, row_id), 0), 0))


def test_cartpole_rows_match_gymnasium_autoreset():
    max_steps, num_rows, num_steps = 20, 4, 100
    actions = np.random.default_rng(1).integers(0, 2, (num_steps, num_rows)).astype(np.int32)
    first, out = play(CartPole(max_steps), num_rows, actions)
    for row in range(num_rows):
        env = gymnasium.make("CartPole-v1", disable_env_checker=True, max_episode_steps=max_steps)
        env.reset(seed=0)
        env.unwrapped.state = np.asarray(first.observation[row], np.float64)
        ended = False
        for t in range(num_steps):
            assert out.valid[t, row] != ended
            assert out.is_first[t, row] == ended
            if ended:
                env.reset(seed=0)
                env.unwrapped.state = np.asarray(out.observation[t, row], np.float64)
                expected = (env.unwrapped.state, 0.0, False, False)
            else:
                expected = env.step(int(actions[t, row]))[:4]
            np.testing.assert_allclose(out.observation[t, row], expected[0], rtol=1e-5, atol=1e-6)
            got = (out.reward[t, row], out.terminated[t, row], out.truncated[t, row])
            assert got == expected[1:]
            ended = expected[2] or expected[3]
        env.close()
    assert out.terminated.any()
    assert out.truncated.any()


def test_a_row_does_not_depend_on_which_rows_are_beside_it():
    actions = np.random.default_rng(2).integers(0, 2, (60, 8)).astype(np.int32)
    _, together = play(CartPole(), 8, actions)
    for rows in ([0], [7, 4, 6, 5, 1]):
        _, apart = play(CartPole(), len(rows), actions[:, rows], row_ids=rows)
        for field in together._fields:
            np.testing.assert_array_equal(getattr(apart, field), getattr(together, field)[:, rows], field)
    assert together.is_first.any()


def test_sharded_rows_match_without_communication():
    actions = np.random.default_rng(3).integers(0, 2, (60, 8)).astype(np.int32)
    first, expected = play(CartPole(), 8, actions)
    mesh = Mesh(np.array(jax.devices()[:4]), ("data",))
    rows = NamedSharding(mesh, PartitionSpec("data"))
    first = jax.device_put(first, rows)
    sharded = jax.device_put(actions, NamedSharding(mesh, PartitionSpec(None, "data")))

    @jax.jit
    def scan(first, actions):
        return jax.lax.scan(partial(step_rows, CartPole(), RUN_KEY), first, actions)

    compiled = scan.lower(first, sharded).compile()
    text = compiled.as_text()
    assert not [name for name in ("all-gather", "all-reduce", "all-to-all", "collective-permute") if name in text]
    last, out = compiled(first, sharded)
    assert last.observation.sharding.is_equivalent_to(rows, 2)
    for field in expected._fields:
        np.testing.assert_array_equal(getattr(out, field), getattr(expected, field), field)


def test_runs_rows_and_episodes_begin_differently():
    reset, ids, many = jax.jit(partial(reset_rows, CartPole())), jnp.arange(50), []
    for seed in range(3):
        for episode in range(3):
            many.append(np.asarray(reset(jax.random.key(seed), ids, jnp.full(50, episode)).observation))
    assert len({tuple(first) for first in np.concatenate(many).tolist()}) == 450


@dataclasses.dataclass(frozen=True)
class Wrong(Echo):
    """Echo with one thing wrong in what `step` returns."""

    changes: tuple = ()

    def step(self, state, action, key):
        return Echo.step(self, state, action, key)._replace(**dict(self.changes))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("observation", np.zeros(3, np.float32)), r"observation of step: expected shape \(2,\).*got \(3,\)"),
        (("observation", np.zeros(2, np.int32)), "observation of step: .*dtype float32, got .*int32"),
        (("reward", np.int32(1)), "reward: .*dtype float32, got .*int32"),
        (("terminated", np.float32(1)), "terminated: .*dtype bool, got .*float32"),
        (("truncated", np.zeros(1, bool)), r"truncated: expected shape \(\)"),
        (("state", np.float32(1)), r"state of step: .*dtype int32, got .*float32"),
        (("state", {"a": np.int32(1)}), "step must return a state of reset's structure"),
    ],
)
def test_validate_env_rejects_wrong_outputs(change, message):
    with pytest.raises(BadEnvOutputError, match=f"Echo: {message}"):
        validate_env(Wrong((change,)))


def test_a_time_limit_reached_while_a_row_resets_does_not_count():
    # Three steps of 1.0: terminated, reset, terminated. The reset's own (thrown away) step must leave no trace.
    _, out = play(Echo(), 1, np.ones((3, 1), np.float32))
    np.testing.assert_array_equal(out.terminated[:, 0], [True, False, True])
    np.testing.assert_array_equal(out.reward[:, 0], [1, 0, 1])


def test_step_keeps_dtypes_of_reset_and_compiles_once():
    def types(state):
        return [(leaf.shape, leaf.dtype, leaf.weak_type) for leaf in jax.tree.leaves(state)]

    first = jax.eval_shape(partial(reset_rows, Echo()), RUN_KEY, jnp.arange(3))  # its state is a Python number
    stepped, _ = jax.eval_shape(partial(step_rows, Echo()), RUN_KEY, first, jnp.zeros(3))
    assert types(first) == types(stepped)


def test_small_dtypes_and_discrete_observations_keep_their_dtype():
    class Discrete(Echo):
        def spec(self):
            return EnvSpec("Discrete", DiscreteSpec(5), DiscreteSpec(2))

        def reset(self, key):
            return {"place": 0}, 0

        def step(self, state, action, key):
            place = jnp.minimum(state["place"] + action, 4)
            return JaxStep({"place": place}, place, jnp.float32(place), place == 4, False)

    _, out = play(Discrete(), 2, np.ones((5, 2), np.int32))
    assert out.observation.dtype == np.int32
    np.testing.assert_array_equal(out.observation[:, 0], [1, 2, 3, 4, 0])
