"""One gradient step of an offline algorithm and its reference: samples, networks and the first step of Adam."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from agents.api import ReplayConfig, Sample, Trajectory
from agents.networks.config import NetworkConfig
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec

N, D = 6, 2
SPEC = EnvSpec("test", ArraySpec((3,), "float32"), ArraySpec((D,), "float32", -2.0, 2.0))
DISCRETE = EnvSpec("test", ArraySpec((3,), "float32"), DiscreteSpec(4))
NETWORK = NetworkConfig(hidden_sizes=(5,), activation="tanh")
REPLAY = ReplayConfig(batch_size=N)
RATE = 0.01
KEY = jax.random.key(7)


def sample_of(spec=SPEC, seed=1):
    """One-step windows: the third terminates, the fourth is truncated, the last only resets."""
    rng = np.random.default_rng(seed)
    no = np.zeros((1, N), bool)
    terminated, truncated, valid = no.copy(), no.copy(), ~no
    terminated[0, 2], truncated[0, 3], valid[0, -1] = True, True, False
    is_discrete = isinstance(spec.action, DiscreteSpec)
    action = (
        rng.integers(0, 4, (1, N)).astype(np.int32) if is_discrete else rng.uniform(-2, 2, (1, N, D)).astype(np.float32)
    )
    trajectory = Trajectory(
        observation=rng.normal(size=(2, N, 3)).astype(np.float32),
        is_first=np.zeros((2, N), bool),
        action=action,
        reward=rng.normal(size=(1, N)).astype(np.float32),
        terminated=terminated,
        truncated=truncated,
        valid=valid,
        policy_version=np.zeros((1, N), np.int32),
        extras={},
    )
    return Sample(jax.tree.map(jnp.asarray, trajectory), jnp.full(N, 0.1), jnp.int32(10))


def parts(sample):
    """Observation, unit action, reward, 1 - terminated, next observation and weight of the first steps."""
    steps = sample.trajectory
    weight = steps.valid[0].astype(jnp.float32)
    going = 1.0 - steps.terminated[0]
    return steps.observation[0], steps.action[0] / 2.0, steps.reward[0], going, steps.observation[1], weight


def mean(values, weight):
    return jnp.sum(values * weight) / jnp.sum(weight)


def shaken(state, seed=3):
    """A state whose target networks differ from the learned ones."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda leaf: leaf + 0.1 * rng.normal(size=leaf.shape).astype(np.float32) if leaf.dtype == jnp.float32 else leaf,
        state,
    )


def start(agent):
    state = agent.init(jax.random.key(0))
    return dataclasses.replace(state, params=shaken(state.params), extra=shaken(state.extra, 4))


def adam(params, gradient):
    """First step of Adam with bias correction: the sign of the gradient, nearly."""
    return jax.tree.map(lambda p, g: p - RATE * g / (jnp.abs(g) + 1e-8), params, gradient)


def assert_close(actual, expected):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), actual, expected)


def two_step_sample():
    """Windows of two steps after those of `sample_of`: a step that ended an episode is followed by one that only resets."""
    first, second = sample_of().trajectory, sample_of(seed=2).trajectory
    ended = first.terminated[0] | first.truncated[0]
    parts = {
        name: jnp.concatenate([getattr(first, name), getattr(second, name)])
        for name in ("action", "reward", "terminated", "truncated", "policy_version")
    }
    trajectory = dataclasses.replace(
        first,
        observation=jnp.concatenate([first.observation, second.observation[1:]]),
        is_first=jnp.zeros((3, N), bool),
        valid=jnp.stack([first.valid[0], ~ended]),
        **parts,
    )
    return Sample(trajectory, jnp.full(N, 0.1), jnp.int32(10))
