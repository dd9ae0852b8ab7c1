"""A teacher in addition to rewards: its divergence by numpy, the gradient that it adds, its weight, and what is rejected."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.a2c import A2CConfig, make_a2c
from agents.api import Trajectory
from agents.networks.config import NetworkConfig
from agents.networks.custom import bound_network
from agents.ppg import PPGConfig, make_ppg
from agents.ppo import PPOConfig, make_ppo
from agents.transforms.normalization import NormalizationConfig
from agents.transforms.teacher import Teacher, teacher_weight, with_teacher
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec

T, B, KEY = 6, 4, jax.random.key(5)
SPEC = EnvSpec("test", ArraySpec((3,), "float32"), DiscreteSpec(3))
NETWORK = NetworkConfig(hidden_sizes=(5,))
OF_TEACHER = NetworkConfig(hidden_sizes=(7,), activation="tanh")


def batch_of(agent):
    random = np.random.default_rng(1)
    ended = random.random((T, B)) < 0.2
    valid = np.concatenate([np.ones((1, B), bool), ~ended[:-1]])
    return Trajectory(
        observation=random.normal(size=(T + 1, B, 3)).astype(np.float32),
        is_first=np.concatenate([np.zeros((1, B), bool), ~valid]),
        action=random.integers(0, 3, (T, B)),
        reward=random.normal(size=(T, B)).astype(np.float32),
        terminated=ended & valid,
        truncated=np.zeros((T, B), bool),
        valid=valid,
        policy_version=np.zeros((T, B), np.int32),
        extras={name: np.zeros((T, B, *extra.shape), extra.dtype) for name, extra in agent.extras.items()},
        agent_state=jax.device_get(agent.initial_agent_state(B)),
    )


def teacher_of(coef=0.5, num_updates=0, network=OF_TEACHER):
    net = bound_network(network, SPEC)
    params = jax.tree.map(lambda leaf: leaf * 8.0, net.init(jax.random.key(9)))
    return Teacher(net, params, coef, num_updates)


def student(plain, teacher, network=NETWORK):
    return with_teacher(plain, bound_network(network, SPEC), teacher, SPEC)


def log_probs(net, params, observation):
    logits = np.asarray(net.policy(params, observation), np.float64)
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def test_divergence_is_the_mean_kl_of_the_steps_that_count():
    plain, teacher = make_a2c(A2CConfig(), SPEC, NETWORK), teacher_of()
    agent, batch = student(plain, teacher), batch_of(plain)
    state = agent.init(KEY)
    _, metrics = jax.jit(agent.update)(state, batch, KEY)
    of_teacher = log_probs(teacher.net, teacher.params, batch.observation[:-1])
    of_student = log_probs(bound_network(NETWORK, SPEC), state.params, batch.observation[:-1])
    kl = (np.exp(of_teacher) * (of_teacher - of_student)).sum(-1)
    assert 0 < batch.valid.sum() < batch.valid.size
    np.testing.assert_allclose(metrics["imitation/teacher_kl"], kl[batch.valid].mean(), rtol=1e-4)
    assert metrics["imitation/teacher_coef"] == 0.5


@pytest.mark.parametrize("core", ["none", pytest.param("gru", marks=pytest.mark.slow)])
def test_its_gradient_is_that_of_the_cross_entropy(core):
    network = dataclasses.replace(NETWORK, core=core)
    plain, teacher = make_a2c(A2CConfig(), SPEC, network), teacher_of(coef=0.25)
    agent, batch, net = student(plain, teacher, network), batch_of(plain), bound_network(network, SPEC)
    state = agent.init(KEY)
    params = state.params
    target = np.exp(log_probs(teacher.net, teacher.params, batch.observation[:-1])).astype(np.float32)

    def cross_entropy(params):
        logits, _, _ = net.unroll(params, batch.observation, batch.agent_state, batch.is_first)
        each = -jnp.sum(target * jax.nn.log_softmax(logits[:-1]), -1)
        return jnp.sum(jnp.where(batch.valid, each, 0.0)) / batch.valid.sum()

    def gradient(steps, params):
        prepared, _ = steps.prepare(params, state.extra, batch, KEY, jnp.asarray(0))
        return steps.gradient(params, prepared, jnp.asarray(0))[0]

    @jax.jit
    def gradients(params):
        own, of_teacher = gradient(plain.gradient_steps, params), jax.grad(cross_entropy)(params)
        return gradient(agent.gradient_steps, params), jax.tree.map(lambda a, b: a + 0.25 * b, own, of_teacher)

    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-6), *gradients(params))


def test_weight_falls_linearly_to_zero():
    teacher = teacher_of(coef=2.0, num_updates=4)
    assert [float(teacher_weight(teacher, jnp.asarray(done))) for done in (0, 1, 3, 4, 9)] == [2.0, 1.5, 0.5, 0.0, 0.0]
    assert float(teacher_weight(teacher_of(coef=2.0), jnp.asarray(10**6))) == 2.0


def test_after_the_last_lesson_the_student_learns_alone():
    plain = make_ppo(PPOConfig(num_epochs=2, num_minibatches=2), SPEC, NETWORK)
    agent, batch = student(plain, teacher_of(num_updates=3)), batch_of(plain)
    state = dataclasses.replace(plain.init(KEY), num_updates=jnp.asarray(3, jnp.int32))
    taught, alone = (jax.jit(each.update)(state, batch, KEY)[0] for each in (agent, plain))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), taught.params, alone.params)


def test_students_that_cannot_be_taught_are_rejected():
    normalized = make_a2c(A2CConfig(normalization=NormalizationConfig(observations=True)), SPEC, NETWORK)
    with pytest.raises(UserError, match="turn off the normalization"):
        student(normalized, teacher_of())
    with pytest.raises(UserError, match="expected one policy of PPO, A2C or IMPALA, got ppg"):
        student(make_ppg(PPGConfig(), SPEC, NETWORK), teacher_of())
    with pytest.raises(UserError, match="got a recurrent network"):
        student(make_a2c(A2CConfig(), SPEC, NETWORK), teacher_of(network=dataclasses.replace(NETWORK, core="gru")))
