"""gSDE: densities by numpy, noise that stays for a period, and agents that act and learn with it."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.a2c import A2CConfig, make_a2c
from agents.api import Mode, ReplayConfig, Sample, Trajectory
from agents.muzero import MuZeroConfig, make_muzero
from agents.networks.actor_critic import make_actor_critic
from agents.networks.config import NetworkConfig
from agents.networks.continuous_actors import make_squashed_actor
from agents.networks.state_dependent_noise import feature_noise, initial_noise_state, next_noise_state
from agents.offline.awac import AWACConfig, make_awac
from agents.offline.bc import BCConfig, make_bc
from agents.offline.iql import IQLConfig, make_iql
from agents.ppg import PPGConfig, make_ppg
from agents.ppo import PPOConfig, make_ppo
from agents.sac import SACConfig, make_sac
from agents.td3 import TD3Config, make_td3
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec

ROWS, PERIOD = 5, 3
SPEC = EnvSpec("e", ArraySpec((3,), "float32"), ArraySpec((2,), "float32", -1.0, 1.0))
NETWORK = NetworkConfig(hidden_sizes=(4, 6), sde_period=PERIOD, initial_log_std=-1.0)
X = np.random.default_rng(0).normal(size=(ROWS, 3)).astype(np.float32)


def drawn(init):
    """Parameters of the shapes that `init` makes, drawn by numpy: orthogonal ones take seconds to compile."""
    shapes, rng = jax.eval_shape(init, jax.random.key(0)), np.random.default_rng(1)
    return jax.tree.map(lambda leaf: (0.5 * rng.normal(size=leaf.shape)).astype(np.float32), shapes)


def numpy_features(torso, x):
    for name in sorted(torso):
        x = np.tanh(x @ torso[name]["kernel"] + torso[name]["bias"])
    return x


def keys(step, rows=ROWS):
    return jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(step), np.arange(rows))


@pytest.mark.parametrize("shared", [False, True])
def test_log_prob_is_that_of_the_paper(shared):
    agent = make_ppo(PPOConfig(), SPEC, NetworkConfig(**(vars(NETWORK) | {"shared_torso": shared})))
    params = drawn(lambda key: agent.init(key).params)
    state = agent.initial_agent_state(ROWS)
    action, extras, _ = jax.jit(partial(agent.act, mode=Mode.SAMPLE))(params, X, state, np.ones(ROWS, bool), keys(0))
    branch = params["shared" if shared else "actor"]["params"]
    features = numpy_features(branch["torso"], X)
    head = branch["policy" if shared else "head"]["Dense_0"]
    mean = features @ head["kernel"] + head["bias"]
    variance = np.zeros((ROWS, 2))
    for row, dimension in np.ndindex(ROWS, 2):
        variance[row, dimension] = sum(
            features[row, i] ** 2 * np.exp(params["log_std"][i, dimension]) ** 2 for i in range(6)
        )
    log_prob = (-0.5 * (action - mean) ** 2 / variance - 0.5 * np.log(2 * np.pi * variance)).sum(-1)
    np.testing.assert_allclose(extras["behavior_log_prob"], log_prob, rtol=1e-3, atol=1e-3)


def test_noise_is_a_linear_function_of_features():
    log_std = np.full((6, 2), -0.3, np.float32)
    features = np.random.default_rng(2).normal(size=(3, 6)).astype(np.float32)
    features[2] = 2.0 * features[0] - 0.5 * features[1]
    noise = feature_noise(features, log_std, jnp.full((3,), 7, jnp.uint32))
    std = np.sqrt(features**2 @ np.exp(2 * log_std))
    raw = np.asarray(noise) * std
    np.testing.assert_allclose(raw[2], 2.0 * raw[0] - 0.5 * raw[1], rtol=1e-3, atol=1e-4)


def test_noise_is_standard_normal_over_seeds():
    log_std = np.random.default_rng(3).normal(size=(6, 2)).astype(np.float32)
    features = np.tile(np.random.default_rng(4).normal(size=6).astype(np.float32), (4000, 1))
    noise = np.asarray(feature_noise(features, log_std, jnp.arange(4000, dtype=jnp.uint32)))
    np.testing.assert_allclose(noise.mean(0), [0.0, 0.0], atol=0.06)
    np.testing.assert_allclose(noise.std(0), [1.0, 1.0], atol=0.05)


def test_seed_lasts_a_period_and_no_longer_than_an_episode():
    state, seeds = initial_noise_state(3), []
    for step in range(7):
        first = np.array([step == 0, step in (0, 2), False])
        state = next_noise_state(PERIOD, state, first, keys(step, 3))
        seeds.append(np.asarray(state["seed"]))
    for row, starts in enumerate(([0, 3, 6], [0, 2, 5], [0, 3, 6])):
        changes = [step for step in range(7) if step == 0 or seeds[step][row] != seeds[step - 1][row]]
        assert changes == starts
    assert len(set(seeds[0].tolist())) == 3


def bound(name):
    if name == "sac":
        return make_sac(SACConfig(random_updates=0, replay=ReplayConfig(batch_size=ROWS)), SPEC, NETWORK)
    if name == "ppg":
        return make_ppg(
            PPGConfig(num_rows=ROWS, rollout_length=4, num_minibatches=2, num_auxiliary_minibatches=2), SPEC, NETWORK
        )
    return make_ppo(PPOConfig(), SPEC, NETWORK) if name == "ppo" else make_a2c(A2CConfig(), SPEC, NETWORK)


@pytest.mark.parametrize("name", ["ppo", "sac"])
def test_actions_repeat_within_a_period(name):
    agent = bound(name)
    params = drawn(lambda key: agent.init(key).params)
    if name == "sac":
        params["acts_uniformly"] = np.zeros((), bool)
    act, state, actions = jax.jit(agent.act, static_argnames="mode"), agent.initial_agent_state(ROWS), []
    same = np.tile(X[:1], (ROWS, 1))
    for step in range(4):
        action, _, state = act(params, same, state, np.full(ROWS, step == 0), keys(step), mode=Mode.SAMPLE)
        actions.append(np.asarray(action))
    np.testing.assert_array_equal(actions[0], actions[1])
    np.testing.assert_array_equal(actions[0], actions[2])
    assert (actions[3] != actions[0]).all()
    assert len(np.unique(actions[0][:, 0])) == ROWS
    alone, _, _ = act(params, same[:2], agent.initial_agent_state(2), np.ones(2, bool), keys(0, 2), mode=Mode.SAMPLE)
    np.testing.assert_allclose(alone, actions[0][:2], rtol=1e-5, atol=1e-6)
    greedy, _, after = act(params, same, state, np.ones(ROWS, bool), keys(9), mode=Mode.GREEDY)
    assert (np.ptp(greedy, axis=0) == 0).all()
    jax.tree.map(np.testing.assert_array_equal, after, state)


def test_squashed_deviation_is_that_of_the_features():
    actor = make_squashed_actor(NETWORK, SPEC, 2)
    params = drawn(actor.init)
    gaussian = jax.jit(actor.parameters)(params, X)
    branch = params["branch"]["params"]
    features = numpy_features(branch["torso"], X)
    np.testing.assert_allclose(
        np.exp(gaussian.log_std), np.sqrt(features**2 @ np.exp(2 * params["log_std"])), rtol=1e-3
    )
    mean = features @ branch["mean"]["Dense_0"]["kernel"] + branch["mean"]["Dense_0"]["bias"]
    np.testing.assert_allclose(gaussian.mean, mean, rtol=1e-3, atol=1e-4)


def test_entropy_does_not_train_the_torso():
    net = make_actor_critic(NETWORK, SPEC)
    grads = jax.jit(jax.grad(lambda params: net.distribution.entropy(net.policy(params, X)).sum()))(drawn(net.init))
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(grads["actor"]))
    assert (grads["log_std"] != 0).all()


def trajectory(agent, steps) -> Trajectory:
    rng = np.random.default_rng(5)
    flags = np.zeros((steps, ROWS), bool)
    return Trajectory(
        observation=rng.normal(size=(steps + 1, ROWS, 3)).astype(np.float32),
        is_first=np.zeros((steps + 1, ROWS), bool),
        action=rng.uniform(-1, 1, (steps, ROWS, 2)).astype(np.float32),
        reward=rng.normal(size=(steps, ROWS)).astype(np.float32),
        terminated=flags,
        truncated=flags,
        valid=~flags,
        policy_version=np.zeros((steps, ROWS), np.int32),
        extras={name: np.zeros((steps, ROWS), np.float32) for name in agent.extras},
        agent_state=agent.initial_agent_state(ROWS),
    )


@pytest.mark.parametrize("name", ["ppo", "a2c", "ppg", "sac"])
def test_update_trains_the_matrix(name):
    agent = bound(name)
    state = jax.tree.map(
        lambda leaf: jnp.full(leaf.shape, 0.1).astype(leaf.dtype), jax.eval_shape(agent.init, jax.random.key(0))
    )
    batch = trajectory(agent, 1 if name == "sac" else 4)
    if name == "sac":
        batch = Sample(batch, np.full(ROWS, 0.1, np.float32), np.int32(10))
    after = jax.jit(agent.update)(state, batch, jax.random.key(1))[0].params
    before, after = (params["actor"] if name == "sac" else params for params in (state.params, after))
    assert (np.asarray(after["log_std"]) != before["log_std"]).all()
    assert np.isfinite(after["log_std"]).all()


@pytest.mark.parametrize(
    ("make", "config"),
    [
        (make_bc, BCConfig()),
        (make_iql, IQLConfig()),
        (make_awac, AWACConfig()),
        (make_td3, TD3Config(random_updates=0)),
        (make_muzero, MuZeroConfig()),
    ],
)
def test_policies_that_cannot_have_this_noise_reject_it(make, config):
    with pytest.raises(UserError, match="network.sde_period 4 has no effect: (a policy|MuZero)"):
        make(config, SPEC, NetworkConfig(sde_period=4))


def test_networks_without_gaussian_features_are_rejected():
    with pytest.raises(UserError, match="expected core 'none' and log_std 'parameter', got 'lstm' and 'parameter'"):
        NetworkConfig(core="lstm", sde_period=4)
    with pytest.raises(UserError, match="expected core 'none' and log_std 'parameter', got 'none' and 'state'"):
        NetworkConfig(log_std="state", sde_period=4)
    with pytest.raises(UserError, match="sde_period must be at least 1"):
        NetworkConfig(sde_period=0)
    with pytest.raises(UserError, match="e: sde_period makes noise of continuous actions: expected one array"):
        make_actor_critic(NETWORK, EnvSpec("e", SPEC.observation, DiscreteSpec(2)))
