"""DDPG against hand values, and the parts of TD3 that it lacks."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents import td3
from agents.api import ReplayConfig, Sample, Trajectory
from agents.ddpg import DDPGConfig, make_ddpg, td3_config
from agents.networks.config import NetworkConfig
from agents.ops.schedules import set_factor
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec
from jaxsrl.config.serialization import from_json

SPEC = EnvSpec("test", ArraySpec((1,), "float32"), ArraySpec((1,), "float32", -1.0, 1.0))
NETWORK = NetworkConfig(hidden_sizes=(2,), activation="relu")
CONFIG = DDPGConfig(ReplayConfig(batch_size=1), discount=0.5, tau=0.25)


def _state(agent, actor: float, target_actor: float, critic: float, target_critic: float):
    """Networks whose hidden layer passes positive inputs on: mu(o) = tanh(w o), Q(o, a) = v (o + a) for o + a > 0."""
    shapes = jax.eval_shape(agent.init, jax.random.key(0))
    state = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
    state = dataclasses.replace(state, opt_state=set_factor(state.opt_state, "learning_rate_factor", 1.0))

    def set_actor(tree, weight) -> None:
        tree["params"]["torso"]["Dense_0"]["kernel"][...] = 1.0
        tree["params"]["head"]["Dense_0"]["kernel"][...] = weight / 2.0

    def set_critic(tree, weight) -> None:
        first = tree["params"]["torso"]["input"]
        first["kernel/observation"][...] = first["kernel/action"][...] = 1.0
        tree["params"]["head"]["Dense_0"]["kernel"][...] = weight / 2.0

    set_actor(state.params["actor"], actor)
    set_actor(state.extra.target_actor, target_actor)
    set_critic(state.extra.critic, critic)
    set_critic(state.extra.target_critic, target_critic)
    return state


def test_a_hand_computed_step():
    agent = make_ddpg(CONFIG, SPEC, NETWORK)
    state = _state(agent, actor=1.0, target_actor=2.0, critic=3.0, target_critic=5.0)
    steps = Trajectory(
        observation=jnp.array([[[1.0]], [[0.5]]]),
        is_first=jnp.zeros((2, 1), bool),
        action=jnp.array([[[0.25]]]),
        reward=jnp.array([[2.0]]),
        terminated=jnp.zeros((1, 1), bool),
        truncated=jnp.zeros((1, 1), bool),
        valid=jnp.ones((1, 1), bool),
        policy_version=jnp.zeros((1, 1), jnp.int32),
        extras={},
    )
    sample = Sample(steps, jnp.ones(1), jnp.int32(1))
    new, metrics, priority = jax.device_get(jax.jit(agent.update)(state, sample, jax.random.key(0)))
    target = 2.0 + 0.5 * 5.0 * (0.5 + np.tanh(2.0 * 0.5))  # r + g Q'(o', mu'(o'))
    value = 3.0 * (1.0 + 0.25)
    assert float(metrics["value/target"]) == pytest.approx(target, rel=1e-5)
    assert float(metrics["loss/critic"]) == pytest.approx(0.5 * (value - target) ** 2, rel=1e-5)
    assert float(priority[0]) == pytest.approx(target - value, rel=1e-5)
    # One critic; the actor learns at the first step already, and its target follows a quarter of the way.
    assert all(leaf.shape[0] == 1 for leaf in jax.tree.leaves(new.extra.critic))
    moved = np.asarray(new.params["actor"]["params"]["head"]["Dense_0"]["kernel"])
    assert (moved > 0.5).all()  # the critic's value grows with the action
    followed = np.asarray(new.extra.target_actor["params"]["head"]["Dense_0"]["kernel"])
    np.testing.assert_allclose(followed, 0.75 * 1.0 + 0.25 * moved, rtol=1e-6)


def test_targets_are_not_smoothed():
    bound = td3.build_td3(td3_config(CONFIG), SPEC, NETWORK)
    state = _state(make_ddpg(CONFIG, SPEC, NETWORK), 1.0, 2.0, 3.0, 5.0)
    observation = np.linspace(0.1, 1.0, 5, dtype=np.float32)[:, None]
    actions = [td3.smoothed_actions(bound, state.extra.target_actor, observation, jax.random.key(k)) for k in (0, 1)]
    np.testing.assert_array_equal(*actions)
    np.testing.assert_allclose(actions[0], np.tanh(2.0 * observation), rtol=1e-5)
    assert bound.config.policy_delay == 1


def test_a_configuration_comes_back_from_json():
    assert from_json(DDPGConfig, json.loads(json.dumps(dataclasses.asdict(CONFIG)))) == CONFIG


def test_ddpg_rejects_unsupported_settings():
    with pytest.raises(UserError, match="exploration_noise must not be negative: got -1"):
        DDPGConfig(exploration_noise=-1.0)
    with pytest.raises(UserError, match=r"DDPG learns from single transitions.*got 'gru'"):
        make_ddpg(CONFIG, SPEC, NetworkConfig(core="gru"))
    with pytest.raises(UserError, match="continuous actions"):
        make_ddpg(CONFIG, dataclasses.replace(SPEC, action=DiscreteSpec(3)), NETWORK)
