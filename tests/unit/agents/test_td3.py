"""TD3 against numpy loops."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.api import LearnerState, Mode, ReplayAgent, ReplayConfig, Sample, Trajectory
from agents.networks.config import NetworkConfig
from agents.ops.n_step import first_n_step_transitions
from agents.ops.schedules import set_factor
from agents.td3 import TD3, TD3Config, actor_loss, build_td3, make_td3, smoothed_actions
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, EnvSpec

SPEC = EnvSpec("test", ArraySpec((3,), "float32"), ArraySpec((2,), "float32", -2.0, 2.0))
NETWORK = NetworkConfig(hidden_sizes=(4,), activation="relu")
CONFIG = TD3Config(ReplayConfig(batch_size=5), discount=0.9, tau=0.25, policy_delay=3, target_noise=0.0)
N = 5


class Learnt(NamedTuple):
    """The bound algorithm, the agent, and the states after 0, 1, 2 and 3 gradient steps on one sample."""

    bound: TD3
    agent: ReplayAgent
    sample: Sample
    states: list[LearnerState]
    metrics: list[dict]
    update: Callable


def _sample() -> Sample:
    rng = np.random.default_rng(1)
    terminated = np.zeros((1, N), bool)
    terminated[0, 2] = True
    trajectory = Trajectory(
        observation=rng.normal(size=(2, N, 3)).astype(np.float32),
        is_first=np.zeros((2, N), bool),
        action=rng.uniform(-2.0, 2.0, (1, N, 2)).astype(np.float32),
        reward=rng.normal(size=(1, N)).astype(np.float32),
        terminated=terminated,
        truncated=np.zeros((1, N), bool),
        valid=np.ones((1, N), bool),
        policy_version=np.zeros((1, N), np.int32),
        extras={},
    )
    return Sample(jax.tree.map(jnp.asarray, trajectory), jnp.full(N, 0.1), jnp.int32(10))


def _filled(state: LearnerState) -> LearnerState:
    """A state whose actor, target actor, critics and target critics are all of their own."""
    rng = np.random.default_rng(2)

    def fill(leaf) -> np.ndarray:
        return (rng.normal(size=leaf.shape) * 0.5).astype(np.float32) if leaf.dtype == np.float32 else leaf

    extra = state.extra
    parts = {name: jax.tree.map(fill, getattr(extra, name)) for name in ("critic", "target_critic", "target_actor")}
    params = {**state.params, "actor": jax.tree.map(fill, state.params["actor"])}
    opt_state = jax.device_get(set_factor(state.opt_state, "learning_rate_factor", 1.0))
    return dataclasses.replace(state, params=params, opt_state=opt_state, extra=dataclasses.replace(extra, **parts))


@pytest.fixture(scope="module")
def learnt() -> Learnt:
    bound = build_td3(CONFIG, SPEC, NETWORK)
    agent, sample = make_td3(CONFIG, SPEC, NETWORK), _sample()
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), jax.eval_shape(agent.init, jax.random.key(0)))
    states, metrics, update = [_filled(zeros)], [], jax.jit(agent.update)
    for step in range(3):
        state, found, _ = update(states[-1], sample, jax.random.key(step))
        states.append(jax.device_get(state))  # numpy: comparing jax arrays one by one compiles for each shape
        metrics.append(found)
    return Learnt(bound, agent, sample, states, metrics, update)


def _moved(before, after) -> bool:
    return any(jax.tree.leaves(jax.tree.map(lambda a, b: bool(np.any(np.asarray(a) != b)), before, after)))


def test_td3_actor_and_targets_move_after_policy_delay(learnt):
    for step, moves in enumerate((False, False, True)):
        old, new = learnt.states[step], learnt.states[step + 1]
        assert _moved(old.extra.critic, new.extra.critic)
        for before, after in (
            (old.params["actor"], new.params["actor"]),
            (old.extra.target_actor, new.extra.target_actor),
            (old.extra.target_critic, new.extra.target_critic),
        ):
            assert _moved(before, after) is moves, step
        chex.assert_trees_all_equal_shapes_and_dtypes(old, new)


def test_targets_go_a_fraction_of_the_way_after_the_actors_step(learnt):
    old, new = learnt.states[2], learnt.states[3]

    def part_way(target, online) -> np.ndarray:
        return 0.75 * np.asarray(target) + 0.25 * np.asarray(online)

    expected = jax.tree.map(part_way, old.extra.target_actor, new.params["actor"])
    chex.assert_trees_all_close(new.extra.target_actor, expected, rtol=1e-5, atol=1e-6)
    expected = jax.tree.map(part_way, old.extra.target_critic, new.extra.critic)
    chex.assert_trees_all_close(new.extra.target_critic, expected, rtol=1e-5, atol=1e-6)


def _numpy_mlp(params, member, layers, *inputs) -> np.ndarray:
    """A network of one hidden layer, whose weights for each input are `layers`."""
    leaf = lambda x: np.asarray(x if member is None else x[member], np.float64)  # noqa: E731
    hidden = sum(x @ leaf(weights) for x, weights in zip(inputs, layers[:-1], strict=True)) + leaf(layers[-1])
    head = params["params"]["head"]["Dense_0"]
    return np.maximum(hidden, 0.0) @ leaf(head["kernel"]) + leaf(head["bias"])


def _numpy_actor(params, observation) -> np.ndarray:
    first = params["params"]["torso"]["Dense_0"]
    return np.tanh(_numpy_mlp(params, None, [first["kernel"], first["bias"]], observation))


def _numpy_critic(params, member, observation, action) -> np.ndarray:
    first = params["params"]["torso"]["input"]
    layers = [first["kernel/observation"], first["kernel/action"], first["bias"]]
    return _numpy_mlp(params, member, layers, observation, action)[:, 0]


def test_td3_targets_and_critic_loss_equal_numpy(learnt):
    state = learnt.states[0]
    _, metrics, priorities = learnt.update(state, learnt.sample, jax.random.key(0))
    steps = jax.tree.map(np.asarray, learnt.sample.trajectory)
    here, after = steps.observation
    action = _numpy_actor(state.extra.target_actor, after)
    least = np.minimum(*(_numpy_critic(state.extra.target_critic, member, after, action) for member in range(2)))
    target = steps.reward[0] + 0.9 * np.where(steps.terminated[0], 0.0, least)
    errors = [_numpy_critic(state.extra.critic, member, here, steps.action[0] / 2.0) - target for member in range(2)]
    assert float(metrics["value/target"]) == pytest.approx(target.mean(), rel=1e-4)
    assert float(metrics["loss/critic"]) == pytest.approx(0.5 * np.square(errors).mean(-1).sum(), rel=1e-4)
    np.testing.assert_allclose(priorities, np.abs(errors).mean(0), rtol=1e-4)


def test_td3_actor_loss_is_minus_first_critic(learnt):
    state, here = learnt.states[0], np.asarray(learnt.sample.trajectory.observation[0])
    value = _numpy_critic(learnt.states[1].extra.critic, 0, here, _numpy_actor(state.params["actor"], here))
    assert float(learnt.metrics[0]["loss/actor"]) == pytest.approx(-value.mean(), rel=1e-4)


def test_the_actors_step_makes_its_loss_smaller(learnt):
    old, new = learnt.states[2], learnt.states[3]
    batch = first_n_step_transitions(learnt.sample.trajectory, CONFIG.discount, CONFIG.n_step)
    batch = batch._replace(action=learnt.bound.actions.to_unit(batch.action))
    loss = jax.jit(lambda actor: actor_loss(learnt.bound, actor, new.extra.critic, batch)[0])
    assert float(loss(new.params["actor"])) < float(loss(old.params["actor"]))


def test_smoothing_of_targets_is_clipped_noise_within_the_bounds(learnt):
    state, observation = learnt.states[0], np.random.default_rng(3).normal(size=(600, 3)).astype(np.float32)
    action = _numpy_actor(state.extra.target_actor, observation)
    config = dataclasses.replace(CONFIG, target_noise=0.4, target_noise_clip=0.5)
    smoothed = jax.jit(partial(smoothed_actions, build_td3(config, SPEC, NETWORK)))
    noisy = np.asarray(smoothed(state.extra.target_actor, observation, jax.random.key(0)))
    inner = np.abs(action) < 0.5
    moved = (noisy - action)[inner]  # the bounds are too far away to cut these
    assert np.abs(noisy).max() <= 1.0
    assert np.abs(moved).max() == pytest.approx(0.5, abs=1e-5)
    # 21 % of Gaussian noise lies beyond 1.25 deviations; with some 400 draws, four deviations are 0.09.
    assert len(moved) > 300
    assert np.mean(np.abs(moved) > 0.499) == pytest.approx(0.21, abs=0.09)
    assert np.std(moved) == pytest.approx(0.35, abs=0.05)


def test_td3_exploration_noise_stays_within_bounds(learnt):
    state = learnt.states[0]
    observation = np.zeros((1000, 3), np.float32)
    params = {"actor": state.params["actor"], "acts_uniformly": np.zeros((), bool)}
    keys = jax.random.split(jax.random.key(0), 1000)

    def explore(noise: float) -> np.ndarray:
        agent = make_td3(dataclasses.replace(CONFIG, exploration_noise=noise), SPEC, NETWORK)
        act = jax.jit(agent.act, static_argnums=5)
        return np.asarray(act(params, observation, (), np.zeros(1000, bool), keys, Mode.SAMPLE)[0]) / 2.0

    noisy = explore(0.2)
    center = _numpy_actor(state.params["actor"], observation[:1])[0]
    inside = np.abs(center) < 0.4
    assert inside.any()
    np.testing.assert_allclose(noisy.mean(0)[inside], center[inside], atol=0.03)
    np.testing.assert_allclose(noisy.std(0)[inside], 0.2, atol=0.02)
    assert np.abs(explore(2.0)).max() == 1.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"policy_delay": 0}, "policy_delay must be at least 1: got 0"),
        ({"target_noise": -0.1}, "target_noise must not be negative: got -0.1"),
        ({"exploration_noise": -0.1}, "exploration_noise must not be negative: got -0.1"),
    ],
)
def test_td3_rejects_invalid_configurations(change, message):
    with pytest.raises(UserError, match=message):
        TD3Config(**change)
