"""Chunks of time begin where a full unroll would be; gradients end there, and rows stay where they are."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents import ppo
from agents.api import Trajectory
from agents.networks import chunked_unroll
from agents.networks.actor_critic import make_actor_critic
from agents.networks.config import NetworkConfig
from agents.ops.policy_gradient import SurrogateCoefficients
from agents.ops.schedules import init_factors
from agents.ppo import PPOConfig
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec
from jaxsrl.learner.mesh import LearnerMesh

SPEC = EnvSpec("test", ArraySpec((3,), "float32"), DiscreteSpec(2))
NETWORK = NetworkConfig(hidden_sizes=(8,), core="gru", core_size=6)
STEPS, ROWS, KEY = 8, 4, jax.random.key(0)


def trajectory(seed=0, rows=ROWS):
    """A trajectory of a network with memory, in the middle of episodes."""
    rng, shape = np.random.default_rng(seed), (STEPS, rows)
    terminated, truncated = rng.random(shape) < 0.15, rng.random(shape) < 0.1
    ended = terminated | truncated
    valid = np.concatenate([np.ones((1, rows), bool), ~ended[:-1]])
    is_first = np.concatenate([np.zeros((1, rows), bool), ~valid])
    net = make_actor_critic(NETWORK, SPEC)
    state = jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32), net.initial_state(rows))
    return Trajectory(
        observation=rng.normal(size=(STEPS + 1, rows, 3)).astype(np.float32),
        is_first=is_first[: STEPS + 1],
        action=rng.integers(0, 2, shape).astype(np.int32),
        reward=rng.normal(size=shape).astype(np.float32),
        terminated=terminated & valid,
        truncated=truncated & valid,
        valid=valid,
        policy_version=np.zeros(shape, np.int32),
        extras={"behavior_log_prob": np.full(shape, np.log(0.5), np.float32)},
        agent_state=state,
    )


def unrolled_step_by_step(net, params, data):
    """States before each step, and outputs, by single steps."""
    state, states, outputs, single = data.agent_state, [], [], jax.jit(net.step)
    for t in range(STEPS):
        states.append(state)
        parameters, state = single(params, data.observation[t], state, data.is_first[t])
        outputs.append(parameters)
    return states, np.stack(outputs)


@pytest.mark.parametrize(
    ("length", "burn_in"), [(2, 1), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((8, 0), (4, 4)))]
)
def test_chunk_states_equal_those_of_single_steps(length, burn_in):
    net, data = make_actor_critic(NETWORK, SPEC), trajectory()
    params, sizes = jax.jit(net.init)(jax.random.key(0)), chunked_unroll.ChunkSizes(length, burn_in)
    unroll = jax.jit(chunked_unroll.unroll_in_chunks, static_argnums=(0, 5))
    found = unroll(net, params, data.observation, data.is_first, data.agent_state, sizes)
    states, outputs = unrolled_step_by_step(net, params, data)
    np.testing.assert_allclose(found.parameters, outputs, rtol=1e-5, atol=1e-6)
    assert found.value.shape == (STEPS + 1, ROWS)
    steps = jax.tree.map(lambda x: jnp.asarray(x[:-1]), (data.observation, data.is_first))
    numbers = jnp.array([STEPS // length - 1, 0])
    begin = jax.jit(chunked_unroll.chunk_states, static_argnums=(0, 6))
    begun = begin(net, params, *steps, found.states, numbers, sizes)
    for place, number in enumerate(numbers.tolist()):
        of_chunk = jax.tree.map(lambda x, place=place: x.reshape((ROWS, 2, -1))[:, place], begun)
        chex.assert_trees_all_close(of_chunk, states[number * length], rtol=1e-5, atol=1e-6)


def test_take_chunks_keeps_rows_together():
    x = np.arange(STEPS * ROWS).reshape(STEPS, ROWS)  # step t of row b is t * ROWS + b
    taken = chunked_unroll.take_chunks(jnp.asarray(x), jnp.array([3, 1]), 2)
    assert taken.shape == (2, ROWS * 2)
    for row in range(ROWS):
        np.testing.assert_array_equal(taken[:, 2 * row], x[6:8, row])
        np.testing.assert_array_equal(taken[:, 2 * row + 1], x[2:4, row])


@functools.cache
def compiled(config):
    """(agent, its init, update, prepare and gradient), each compiled once for all tests."""
    agent = ppo.make_ppo(config, SPEC, NETWORK)
    steps = agent.gradient_steps
    return agent, *(jax.jit(function) for function in (agent.init, agent.update, steps.prepare, steps.gradient))


def gradient_of(config, data, params):
    """Mean gradient over the minibatches of one epoch, without a step in between."""
    _, _, _, prepare, gradient = compiled(config)
    prepared, _ = prepare(params, init_factors("entropy_coef"), data, jax.random.key(3), 0)
    found = [gradient(params, prepared, np.int32(step)) for step in range(config.num_gradient_steps)]
    grads = jax.tree.map(lambda *leaves: np.mean(leaves, axis=0), *[grads for grads, _ in found])
    return grads, float(np.mean([metrics["loss/total"] for _, metrics in found]))


PLAIN = PPOConfig(normalize_advantage=False, num_epochs=1, num_minibatches=1)
CHUNKS = PPOConfig(chunk_length=4, num_minibatches=2, burn_in=2)


@pytest.mark.slow  # to compile; the gradients below are by hand
def test_chunked_loss_equals_full_sequence_loss():
    data = dataclasses.replace(trajectory(), valid=np.ones((STEPS, ROWS), bool))
    params = compiled(PLAIN)[1](jax.random.key(1)).params
    _, whole = gradient_of(PLAIN, data, params)
    config = dataclasses.replace(PLAIN, chunk_length=2, num_minibatches=4, burn_in=1)
    _, cut = gradient_of(config, data, params)
    assert cut == pytest.approx(whole, rel=1e-5)


def test_chunked_gradients_equal_manual_truncation():
    data = trajectory()
    net = make_actor_critic(NETWORK, SPEC)
    params = compiled(PLAIN)[1](jax.random.key(1)).params
    batch, _ = jax.jit(ppo.make_batch, static_argnums=(0, 1))(PLAIN, net, params, data)

    def loss_by_hand(p):
        """All of time, four steps at a time; the state is cut from the graph before each four, under the same params."""
        state, parameters, values = data.agent_state, [], []
        for four in (slice(0, 4), slice(4, 8)):
            state = jax.lax.stop_gradient(state)
            of_four, value, state = net.unroll(p, data.observation[four], state, data.is_first[four])
            parameters.append(of_four)
            values.append(value)
        fake = net._replace(unroll=lambda *_: (jnp.concatenate(parameters), jnp.concatenate(values), ()))
        return ppo.loss(PLAIN, fake, p, batch, SurrogateCoefficients(PLAIN.clip_epsilon, PLAIN.entropy_coef))[0]

    expected = jax.jit(jax.grad(loss_by_hand))(params)
    found, _ = gradient_of(dataclasses.replace(PLAIN, chunk_length=4), data, params)
    chex.assert_trees_all_close(found, expected, rtol=1e-4, atol=1e-6)
    whole, _ = gradient_of(PLAIN, data, params)
    difference = jax.tree.map(lambda a, b: float(np.abs(a - b).max()), whole, found)
    assert max(jax.tree.leaves(difference)) > 1e-4  # the cut can be seen


@pytest.mark.slow
def test_chunked_update_ignores_reset_steps_bit_for_bit():
    data = trajectory(seed=2, rows=8)
    assert not data.valid.all()
    junk = ~data.valid
    spoiled = dataclasses.replace(
        data,
        action=np.where(junk, 1 - data.action, data.action).astype(np.int32),
        reward=np.where(junk, 1e3, data.reward).astype(np.float32),
        extras={"behavior_log_prob": np.where(junk, -50.0, np.log(0.5)).astype(np.float32)},
    )
    _, init, update, _, _ = compiled(CHUNKS)
    one, _ = update(init(jax.random.key(1)), data, jax.random.key(0))
    other, _ = update(init(jax.random.key(1)), spoiled, jax.random.key(0))
    chex.assert_trees_all_equal(one, other)


@pytest.mark.slow
def test_recurrent_update_over_four_devices_has_no_gather():
    agent, init, update_alone, _, _ = compiled(CHUNKS)
    data, first = trajectory(rows=8), init(jax.random.key(1))
    expected, _ = update_alone(first, data, jax.random.fold_in(jax.random.key(5), 0))
    mesh = LearnerMesh(jax.local_devices()[:4])
    state = mesh.place_state(first)
    steps = jax.device_put(dataclasses.replace(data, agent_state=()), mesh.rows)
    batch = dataclasses.replace(steps, agent_state=jax.device_put(data.agent_state, mesh.leading_rows))
    update = mesh.jit_update(agent, jax.random.key(5)).lower(state, batch).compile()
    assert "all-gather" not in update.as_text()
    chex.assert_trees_all_close(jax.device_get(update(state, batch)[0]), jax.device_get(expected), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"chunk_length": 3}, "chunk_length must divide rollout_length: got 3 and 8"),
        (
            {"chunk_length": 4, "num_minibatches": 4},
            "num_minibatches must divide rollout_length / chunk_length: got 4 and 2",
        ),
    ],
)
def test_chunk_length_must_divide_rollout(change, message):
    agent = ppo.make_ppo(PPOConfig(**change), SPEC, NETWORK)
    with pytest.raises(UserError, match=message):
        jax.eval_shape(agent.update, jax.eval_shape(agent.init, KEY), trajectory(), KEY)
