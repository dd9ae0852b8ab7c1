"""IMPALA, A2C and REINFORCE: the loss and its gradient by hand, steps that do not count, memory, devices."""

import dataclasses
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from agents import a2c, impala, reinforce
from agents.a2c import A2CConfig, make_a2c
from agents.api import Mode, Trajectory
from agents.impala import IMPALAConfig, make_impala
from agents.networks.actor_critic import ActorCritic
from agents.networks.config import NetworkConfig
from agents.networks.distributions import categorical
from agents.ops.optimizers import OptimizerConfig
from agents.ops.schedules import ScheduleConfig
from agents.ops.vtrace import VTraceConfig
from agents.ppg import PPGConfig, make_ppg
from agents.ppo import PPOConfig, make_ppo
from agents.reinforce import REINFORCEConfig, make_reinforce
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec
from jaxsrl.config.serialization import from_json, to_json
from jaxsrl.learner.mesh import LearnerMesh
from tests.support.actor_critic_loss import parameter_network

SPEC = EnvSpec("test", ArraySpec((3,), "float32"), DiscreteSpec(2))
NETWORK = NetworkConfig(hidden_sizes=(8,))
STEPS, ROWS = 6, 8
AGENTS = {
    "impala": (make_impala, IMPALAConfig()),
    "a2c": (make_a2c, A2CConfig()),
    "reinforce": (make_reinforce, REINFORCEConfig()),
}
MODULES = {"impala": impala, "a2c": a2c, "reinforce": reinforce}


def trajectory(seed=0, p_end=0.3) -> Trajectory:
    rng = np.random.default_rng(seed)
    shape = (STEPS, ROWS)
    terminated = rng.random(shape) < p_end
    valid = np.ones(shape, bool)
    for t in range(1, STEPS):
        valid[t] = ~terminated[t - 1]
        terminated[t] &= valid[t]
    return Trajectory(
        observation=rng.normal(size=(STEPS + 1, ROWS, 3)).astype(np.float32),
        is_first=np.concatenate([np.zeros((2, ROWS), bool), terminated[:-1]]),
        action=rng.integers(0, 2, shape).astype(np.int32),
        reward=(rng.normal(size=shape) * valid).astype(np.float32),
        terminated=terminated,
        truncated=np.zeros(shape, bool),
        valid=valid,
        policy_version=np.zeros(shape, np.int32),
        extras={"behavior_log_prob": np.full(shape, np.log(0.5), np.float32)},
    )


def updated(name, data, **changes):
    make, config = AGENTS[name]
    agent = make(dataclasses.replace(config, **changes), SPEC, NETWORK)
    return jax.jit(agent.update)(agent.init(jax.random.key(1)), data, jax.random.key(0))


@pytest.mark.parametrize("name", AGENTS)
def test_update_with_reward_clip_equals_that_of_clipped_rewards(name):
    data = trajectory()
    clipped = dataclasses.replace(data, reward=np.clip(data.reward, -0.5, 0.5))
    state, _ = updated(name, data, reward_clip=0.5)
    chex.assert_trees_all_equal(state.params, updated(name, clipped)[0].params)
    with pytest.raises(AssertionError):
        chex.assert_trees_all_equal(state.params, updated(name, data)[0].params)


def two_steps(valid=(True, True)):
    """One row, two steps with actions 0 and 1 that earn 3 and -1, of a network whose outputs are the parameters themselves."""
    column = lambda *x: np.array(x)[:, None]  # noqa: E731
    no = np.zeros((2, 1), bool)
    log_prob = np.full((2, 1), np.log(0.5), np.float32)
    data = Trajectory(
        None, no, column(0, 1), column(3.0, -1.0), no, no, column(*valid), no, {"behavior_log_prob": log_prob}
    )
    return {"logits": jnp.log(jnp.full((3, 1, 2), 0.5)), "value": jnp.array([[1.0], [2.0], [9.0]])}, data


def gradient_of(name, params, data, **changes):
    """At discount 0 every algorithm has advantages r - V = (2, -3) and targets r."""
    options = {"bootstrap": True} if name == "reinforce" else {}
    config = dataclasses.replace(AGENTS[name][1], **{"discount": 0.0, "entropy_coef": 0.0, **options, **changes})
    return jax.grad(partial(MODULES[name].loss, config, parameter_network()), has_aux=True)(
        params, data, config.entropy_coef
    )


@pytest.mark.parametrize("name", AGENTS)
def test_loss_is_policy_plus_value_error_minus_entropy(name):
    params, data = two_steps()
    _, metrics = gradient_of(name, params, data, value_coef=0.7, entropy_coef=0.3)
    policy, value_error, entropy = -np.log(0.5) * (2.0 - 3.0) / 2.0, 0.5 * (4.0 + 9.0) / 2.0, np.log(2.0)
    assert float(metrics["loss/policy"]) == pytest.approx(policy, rel=1e-5)
    assert float(metrics["loss/value"]) == pytest.approx(value_error, rel=1e-5)
    assert float(metrics["loss/total"]) == pytest.approx(policy + 0.7 * value_error - 0.3 * entropy, rel=1e-5)


@pytest.mark.parametrize("name", AGENTS)
def test_no_gradient_flows_through_advantages_and_targets(name):
    params, data = two_steps()
    grads, _ = gradient_of(name, params, data, value_coef=0.5)
    # -A (onehot - pi) / 2 steps, and c_v (V - target) / 2 steps
    np.testing.assert_allclose(grads["logits"][:, 0], [[-0.5, 0.5], [-0.75, 0.75], [0.0, 0.0]], atol=1e-6)
    np.testing.assert_allclose(grads["value"][:, 0], [-0.5, 0.75, 0.0], rtol=1e-5)


@pytest.mark.parametrize("name", AGENTS)
def test_standardized_advantages_have_mean_0_and_deviation_1(name):
    params, data = two_steps()
    grads, _ = gradient_of(name, params, data, normalize_advantage=True)
    np.testing.assert_allclose(grads["logits"][:2, 0], [[-0.25, 0.25], [-0.25, 0.25]], rtol=1e-5)


@pytest.mark.parametrize("name", AGENTS)
def test_a_step_that_does_not_count_has_no_gradient(name):
    params, data = two_steps(valid=(True, False))
    grads, _ = gradient_of(name, params, data)
    assert not np.asarray(grads["logits"][1:]).any()
    assert not np.asarray(grads["value"][1:]).any()
    assert np.asarray(grads["value"][0]).all()


@pytest.mark.parametrize("name", AGENTS)
def test_reset_rows_do_not_move_the_parameters(name):
    data = trajectory()
    assert not data.valid.all()
    junk = np.where(data.valid[..., None], data.observation[:-1], 1e6)
    spoiled = dataclasses.replace(
        data,
        observation=np.concatenate([junk, data.observation[-1:]]).astype(np.float32),
        action=np.where(data.valid, data.action, 1 - data.action),
        reward=np.where(data.valid, data.reward, np.nan).astype(np.float32),
        extras={"behavior_log_prob": np.where(data.valid, data.extras["behavior_log_prob"], -1e9).astype(np.float32)},
    )
    (one, metrics), (other, _) = updated(name, data), updated(name, spoiled)
    chex.assert_trees_all_equal(one.params, other.params)
    assert all(value.dtype == jnp.float32 and value.shape == () for value in metrics.values())


@pytest.mark.parametrize("name", AGENTS)
def test_trajectory_without_counted_steps_keeps_parameters(name):
    data = trajectory()
    nothing = dataclasses.replace(data, valid=np.zeros_like(data.valid), terminated=np.zeros_like(data.valid))
    make, config = AGENTS[name]
    before = make(config, SPEC, NETWORK).init(jax.random.key(1)).params
    chex.assert_trees_all_equal(updated(name, nothing)[0].params, before)


@pytest.mark.slow  # to compile
def test_a_network_with_memory_learns_from_its_stored_state():
    """Played by `act` with the state it hands on; the probability ratio is then 1, and not if the state is forgotten."""
    agent = make_impala(IMPALAConfig(), SPEC, NetworkConfig(hidden_sizes=(8,), core="gru", core_size=8))
    # The head's gain of 0.01 would hide what the state does: make the policy depend on it.
    initial = agent.init(jax.random.key(1))
    params = jax.tree.map(lambda x: 10.0 * x, initial.params)
    data = trajectory(2)
    state = jax.tree.map(lambda x: x + 0.5, agent.initial_agent_state(ROWS))
    act = jax.jit(agent.act, static_argnums=5)
    memory, actions, log_probs = state, [], []
    for t in range(STEPS):
        keys = jax.random.split(jax.random.key(t), ROWS)
        action, extras, memory = act(params, data.observation[t], memory, data.is_first[t], keys, Mode.SAMPLE)
        actions.append(action)
        log_probs.append(extras["behavior_log_prob"])
    data = dataclasses.replace(
        data, action=jnp.stack(actions), extras={"behavior_log_prob": jnp.stack(log_probs)}, agent_state=state
    )
    assert agent.gradient_steps is not None
    gradient = jax.jit(agent.gradient_steps.gradient)
    _, remembered = gradient(params, (data, initial.extra, 0), jnp.int32(0))
    forgetful = dataclasses.replace(data, agent_state=agent.initial_agent_state(ROWS))
    _, forgotten = gradient(params, (forgetful, initial.extra, 0), jnp.int32(0))
    assert float(remembered["policy/approx_kl"]) == pytest.approx(0.0, abs=1e-6)
    assert float(forgotten["policy/approx_kl"]) > 1e-4


def test_a_linear_schedule_ends_at_zero_and_compiles_once():
    agent = make_a2c(
        A2CConfig(
            learning_rate_schedule=ScheduleConfig("linear"),
            total_updates=2,
            optimizer=OptimizerConfig(max_grad_norm=0.5),
        ),
        SPEC,
        NETWORK,
    )
    update, state, rates = jax.jit(agent.update), agent.init(jax.random.key(0)), []
    for number in range(3):
        before = state
        state, metrics = update(state, trajectory(number), jax.random.key(number))
        rates.append(float(metrics["learning_rate"]))
    np.testing.assert_allclose(rates, [7e-4, 3.5e-4, 0.0], atol=1e-9)
    chex.assert_trees_all_equal(before.params, state.params)
    assert update._cache_size() == 1
    assert int(state.num_updates) == 3


@pytest.mark.slow  # to compile
def test_over_four_devices_the_update_is_the_same():
    agent = make_impala(IMPALAConfig(), SPEC, NETWORK)
    states = []
    for count in (1, 4):
        mesh = LearnerMesh(jax.local_devices()[:count])
        update = mesh.jit_update(agent, jax.random.key(5))
        state, batch = mesh.place_state(agent.init(jax.random.key(1))), jax.device_put(trajectory(), mesh.rows)
        if count == 4:
            text = update.lower(state, batch).compile().as_text()
            assert "all-reduce" in text
            assert "all-gather" not in text
        states.append(jax.device_get(update(state, batch)[0]))
    chex.assert_trees_all_close(*states, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", AGENTS)
@pytest.mark.parametrize(
    "change",
    [{"learning_rate": 0.0}, {"discount": 1.1}, {"entropy_coef": -1.0}, {"value_huber_delta": 0.0}],
)
def test_hyper_parameters_out_of_range_are_rejected(change, name):
    with pytest.raises(UserError, match=next(iter(change))):
        dataclasses.replace(AGENTS[name][1], **change)


@pytest.mark.parametrize("name", AGENTS)
def test_a_configuration_comes_back_from_a_checkpoint_as_it_was(name):
    config = dataclasses.replace(AGENTS[name][1], learning_rate=0.25)
    assert from_json(type(config), to_json(config)) == config


def bandit(name, action, log_ratio, **changes):
    """Gradient of the logits of one-step episodes, [1, rows], where action a earns (1, 5)[a] and values are 2."""
    rows = len(action)
    row = lambda x: np.array(x)[None]  # noqa: E731
    logits = jnp.log(jnp.array([0.25, 0.75]))
    log_prob = np.asarray(logits)[action] - np.array(log_ratio)
    yes, no = np.ones((1, rows), bool), np.zeros((1, rows), bool)
    reward = np.where(row(action) == 1, 5.0, 1.0).astype(np.float32)
    data = Trajectory(
        None, None, row(action), reward, yes, no, yes, no, {"behavior_log_prob": row(log_prob).astype(np.float32)}
    )

    def unroll(params, observation, state, is_first):
        return jnp.broadcast_to(params, (2, rows, 2)), jnp.full((2, rows), 2.0), state

    net = ActorCritic(None, None, None, categorical(2), lambda num_rows: (), None, unroll, False)
    config = dataclasses.replace(AGENTS[name][1], entropy_coef=0.0, value_coef=0.0, **changes)
    return jax.jit(jax.grad(partial(MODULES[name].loss, config, net), has_aux=True))(logits, data, 0.0)[0]


@pytest.mark.slow  # to compile
@pytest.mark.parametrize("changes", [{"name": "a2c"}, {"name": "reinforce"}, {"name": "reinforce", "baseline": False}])
def test_the_gradient_is_that_of_the_expected_reward(changes):
    expected_reward = lambda logits: jax.nn.softmax(logits) @ jnp.array([1.0, 5.0])  # noqa: E731
    expected = -jax.grad(expected_reward)(jnp.log(jnp.array([0.25, 0.75])))
    got = bandit(action=[0, 1, 1, 1], log_ratio=[0.0] * 4, **changes)
    np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_impala_corrects_the_gradient_for_the_behavior_policy():
    no_bounds = VTraceConfig(rho_bar=10.0, c_bar=10.0, policy_rho_bar=10.0)
    # Each action was chosen once, as a uniform policy would: ratios of 1/2 and 3/2.
    got = bandit("impala", action=[0, 1], log_ratio=np.log([0.5, 1.5]), vtrace=no_bounds)
    expected = bandit("a2c", action=[0, 1, 1, 1], log_ratio=[0.0] * 4)
    np.testing.assert_allclose(got, expected, rtol=1e-5)
    truncated = bandit("impala", action=[0, 1], log_ratio=np.log([0.5, 1.5]))
    assert not np.allclose(truncated, expected, rtol=1e-2)


ONCE = {"num_epochs": 1, "num_minibatches": 1}
SQUASHED = {name: (make, config, {}) for name, (make, config) in AGENTS.items()} | {
    "ppo": (make_ppo, PPOConfig(**ONCE), {}),
    "ppo_sde": (make_ppo, PPOConfig(**ONCE), {"sde_period": 4}),
    "ppg": (make_ppg, PPGConfig(**ONCE, num_auxiliary_minibatches=1, rollout_length=STEPS, num_rows=ROWS), {}),
}


@pytest.mark.parametrize("name", SQUASHED)
def test_entropy_metric_of_squash_is_that_of_executed_actions(name):
    make, config, network = SQUASHED[name]
    spec = EnvSpec("box", ArraySpec((3,), "float32"), ArraySpec((1,), "float32", -1.0, 1.0))
    agent = make(config, spec, dataclasses.replace(NETWORK, squash=True, initial_log_std=-0.5, **network))
    state, count = agent.init(jax.random.key(1)), 20_000
    keys, first = jax.random.split(jax.random.key(2), count), np.ones(count, bool)
    observation, memory = np.ones((count, 3), np.float32), agent.initial_agent_state(count)
    action, _, _ = jax.jit(agent.act, static_argnums=5)(state.params, observation, memory, first, keys, Mode.SAMPLE)
    share, edges = np.histogram(action, 400, (-1.0, 1.0))
    expected = scipy.stats.entropy(share) + np.log(edges[1] - edges[0])
    data = trajectory(p_end=1.1)
    actions = np.asarray(action[: STEPS * ROWS]).reshape(STEPS, ROWS, 1)
    data = dataclasses.replace(data, observation=np.ones_like(data.observation), action=actions)
    data = dataclasses.replace(data, agent_state=agent.initial_agent_state(ROWS))
    _, metrics = jax.jit(agent.update)(state, data, jax.random.key(0))
    assert float(metrics["policy/entropy"]) == pytest.approx(expected, abs=0.03)
