"""Open-loop predictions: unseen observations have no effect, states follow the prior, values have the environment's units."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.api import Trajectory
from agents.world_models.model import make_world_model, observe_step
from agents.world_models.open_loop import predict_observations
from agents.world_models.rssm import Latent, sample_stoch
from agents.world_models.sizes import WorldModelConfig
from agents.world_models.windows import load_latent
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec

SIZES = WorldModelConfig(deter=16, hidden=8, classes=4, units=8, stoch=4, blocks=2, depth=2).sizes
STEPS, ROWS = 7, 2
SPEC = EnvSpec(
    "test",
    {"camera": ArraySpec((16, 16, 3), "uint8"), "position": ArraySpec((2,), "float32"), "room": DiscreteSpec(3)},
    DiscreteSpec(2),
)


def observations(seed):
    random = np.random.default_rng(seed)
    return {
        "camera": random.integers(0, 256, (STEPS + 1, ROWS, 16, 16, 3)).astype(np.uint8),
        "position": (9 * random.normal(size=(STEPS + 1, ROWS, 2))).astype(np.float32),
        "room": random.integers(0, 3, (STEPS + 1, ROWS)).astype(np.int32),
    }


def split(params):
    """What acts, and an `extra` with the rest."""
    acting = {name: params[name] for name in ("encoder", "rssm")}
    return acting, SimpleNamespace(other_params={name: params[name] for name in ("decoder", "reward", "continue")})


@pytest.fixture(scope="module")
def case():
    """A model with random parameters, a window in which one episode starts anew, and its prediction function."""
    model, random = make_world_model(SIZES, SPEC, "float32"), np.random.default_rng(1)
    params = jax.jit(model.init)(jax.random.key(0))
    params = jax.tree.map(lambda x: x + 0.2 * random.normal(size=x.shape).astype(np.float32), params)
    is_first = np.zeros((STEPS + 1, ROWS), bool)
    is_first[4, 1] = True
    flags = np.zeros((STEPS, ROWS), bool)
    window = Trajectory(
        observation=observations(0),
        is_first=is_first,
        action=random.integers(0, 2, (STEPS, ROWS)).astype(np.int32),
        reward=np.zeros((STEPS, ROWS), np.float32),
        terminated=flags,
        truncated=flags,
        valid=~flags,
        policy_version=np.zeros((STEPS, ROWS), np.int32),
        extras={},
        agent_state={
            "deter": random.normal(size=(ROWS, SIZES.deter)).astype(np.float32),
            "stoch": random.integers(0, SIZES.classes, (ROWS, SIZES.stoch)).astype(np.int32),
            "action": np.eye(2, dtype=np.float32),
        },
    )
    predict = jax.jit(lambda params, *inputs: predict_observations(model, *split(params), *inputs))
    return model, params, window, predict


SEEN = np.arange(STEPS + 1)[:, None] < np.array([[2, 3]])


def test_unseen_observations_have_no_effect(case):
    _, params, window, predict = case
    other = jax.tree.map(
        lambda old, new: np.where(SEEN.reshape(*SEEN.shape, *[1] * (old.ndim - 2)), old, new),
        window.observation,
        observations(5),
    )
    key = jax.random.key(3)
    before, after = (
        predict(params, dataclasses.replace(window, observation=each), SEEN, key)
        for each in (window.observation, other)
    )
    assert set(before) == {"camera", "position", "room"}
    for name in before:
        np.testing.assert_array_equal(before[name][1], after[name][1])
    changed = dataclasses.replace(window, observation=observations(5))
    assert not np.array_equal(before["position"][1], predict(params, changed, SEEN, key)["position"][1])


def test_states_follow_observations_then_the_prior(case):
    model, params, window, predict = case
    key = jax.random.key(3)
    pairs = predict(params, window, SEEN, key)
    noise = jax.random.gumbel(key, (STEPS + 1, ROWS, SIZES.stoch, SIZES.classes))
    tokens = model.encode(params, window.observation)
    latent, action = load_latent(model, window.agent_state), window.agent_state["action"]
    for t in range(STEPS + 1):
        first = window.is_first[t]
        posterior, _ = observe_step(model, params, latent, action, first, tokens[t], noise[t])
        kept = Latent(*(np.where(first.reshape(-1, *[1] * (x.ndim - 1)), 0.0, x) for x in latent))
        deter = model.advance(params, kept, np.where(first[:, None], 0.0, action))
        prior = sample_stoch(model.prior(params, deter), noise[t])
        stoch = jnp.stack([posterior.stoch[row] if SEEN[t, row] else prior[row] for row in range(ROWS)])
        latent = Latent(deter, stoch)
        decoded = model.decode(params, latent)
        np.testing.assert_allclose(pairs["camera"][1][t], decoded.images[0], atol=1e-5)
        vector = np.asarray(decoded.vector, float)
        position = np.sign(vector[:, :2]) * (np.exp(np.abs(vector[:, :2])) - 1)
        np.testing.assert_allclose(pairs["position"][1][t], position, rtol=1e-4, atol=1e-5)
        odds = np.exp(vector[:, 2:])
        np.testing.assert_allclose(pairs["room"][1][t], odds / odds.sum(-1, keepdims=True), rtol=1e-4, atol=1e-6)
        if t < STEPS:
            action = jax.nn.one_hot(window.action[t], 2)


def test_real_values_have_the_form_of_predictions(case):
    _, params, window, predict = case
    pairs = predict(params, window, SEEN, jax.random.key(3))
    np.testing.assert_allclose(pairs["camera"][0], window.observation["camera"] / 255.0, atol=1e-6)
    np.testing.assert_array_equal(pairs["position"][0], window.observation["position"])
    np.testing.assert_array_equal(pairs["room"][0], np.eye(3)[window.observation["room"]])
    for real, predicted in pairs.values():
        assert (real.shape, real.dtype) == (predicted.shape, predicted.dtype)
