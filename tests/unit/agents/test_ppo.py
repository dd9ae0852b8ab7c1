"""PPO: its loss by hand, its options, and the same update on one device, four devices and under pmap."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from agents import ppo
from agents.api import Mode, Trajectory
from agents.networks.actor_critic import ActorCritic, make_actor_critic
from agents.networks.config import NetworkConfig
from agents.networks.distributions import categorical
from agents.ops.minibatches import Batch
from agents.ops.policy_gradient import SurrogateCoefficients
from agents.ops.schedules import ScheduleConfig
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec
from jaxsrl.learner.mesh import LearnerMesh

SPEC = EnvSpec("test", ArraySpec((3,), "float32"), DiscreteSpec(2))
NETWORK = NetworkConfig(hidden_sizes=(8,))
STEPS, ROWS = 8, 8


def trajectory(seed=0, p_end=0.1) -> Trajectory:
    rng = np.random.default_rng(seed)
    shape = (STEPS, ROWS)
    terminated = rng.random(shape) < p_end
    valid = np.ones(shape, bool)
    valid[1:] = ~terminated[:-1]
    terminated &= valid
    return Trajectory(
        observation=rng.normal(size=(STEPS + 1, ROWS, 3)).astype(np.float32),
        is_first=np.zeros((STEPS + 1, ROWS), bool),
        action=rng.integers(0, 2, shape).astype(np.int32),
        reward=(rng.normal(size=shape) * valid).astype(np.float32),
        terminated=terminated,
        truncated=np.zeros(shape, bool),
        valid=valid,
        policy_version=np.zeros(shape, np.int32),
        extras={"behavior_log_prob": np.full(shape, np.log(0.5), np.float32)},
    )


@functools.cache
def compiled(config):
    """(agent, its init and update), each compiled once for all tests."""
    agent = ppo.make_ppo(config, SPEC, NETWORK)
    return agent, jax.jit(agent.init), jax.jit(agent.update)


def updated(config, data, key=0):
    _, init, update = compiled(config)
    return update(init(jax.random.key(1)), data, jax.random.key(key))


def fixed_network(logits, value) -> ActorCritic:
    """Outputs that are the parameters themselves."""

    def unroll(params, _, state, __):
        return params["logits"], params["value"], state

    return ActorCritic(None, None, None, categorical(2), lambda num_rows: (), None, unroll, False)


def coefficients(config):
    return SurrogateCoefficients(config.clip_epsilon, config.entropy_coef)


def one_step_loss(config, log_ratio, advantage, value=0.0, old_value=0.0, target=0.0, importance=1.0):
    """The loss of a single step whose probability ratio is exp(log_ratio)."""
    log_prob = np.log(0.5)
    params = {"logits": jnp.zeros((1, 1, 2)), "value": jnp.full((1, 1), value)}
    array = lambda x: jnp.full((1, 1), x, jnp.float32)  # noqa: E731
    batch = Batch(
        observation=array(0), action=jnp.zeros((1, 1), jnp.int32), proximal_log_prob=array(log_prob - log_ratio),
        importance=array(importance), old_value=array(old_value),
        advantage=array(advantage), target_value=array(target), weight=array(1.0),
        is_first=jnp.zeros((1, 1), bool),
    )  # fmt: skip
    config = dataclasses.replace(config, normalize_advantage=False)
    return ppo.loss(config, fixed_network(None, None), params, batch, coefficients(config))


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [(1.1, 2.0, -2.2), (1.5, 2.0, -2.4), (0.5, 2.0, -1.0), (1.5, -2.0, 3.0), (0.5, -2.0, 1.6)],
)
def test_the_surrogate_is_clipped_on_the_side_that_helps(ratio, advantage, expected):
    _, metrics = one_step_loss(ppo.PPOConfig(clip_epsilon=0.2), np.log(ratio), advantage)
    assert float(metrics["loss/policy"]) == pytest.approx(expected, rel=1e-5)


def test_total_is_surrogate_plus_value_error_minus_entropy():
    config = ppo.PPOConfig(value_coef=0.7, entropy_coef=0.3)
    total, metrics = one_step_loss(config, 0.0, 1.0, value=2.0, target=5.0)
    assert float(metrics["loss/value"]) == pytest.approx(0.5 * 9.0)
    assert float(total) == pytest.approx(-1.0 + 0.7 * 4.5 - 0.3 * np.log(2.0), rel=1e-5)


def test_make_batch_keeps_actions_with_their_observations():
    leaf = ArraySpec((3,), "float32")
    spec = EnvSpec("test", {"a": leaf, "b": (leaf,)}, {"left": DiscreteSpec(2), "right": DiscreteSpec(2)})
    net, data = make_actor_critic(NETWORK, spec), trajectory()
    structured = dataclasses.replace(
        data,
        observation={"a": data.observation, "b": (-data.observation,)},
        action={"left": data.action, "right": 1 - data.action},
    )
    make_batch = jax.jit(ppo.make_batch, static_argnums=(0, 1))
    batch, _ = make_batch(ppo.PPOConfig(), net, jax.jit(net.init)(jax.random.key(0)), structured)
    np.testing.assert_array_equal(batch.observation["a"], data.observation[:STEPS])
    np.testing.assert_array_equal(batch.observation["b"][0], -data.observation[:STEPS])
    np.testing.assert_array_equal(batch.action["right"], 1 - data.action)


def test_value_clipping_takes_the_larger_error():
    config = ppo.PPOConfig(value_clip_epsilon=0.5)
    _, metrics = one_step_loss(config, 0.0, 1.0, value=3.0, old_value=0.0, target=3.0)
    assert float(metrics["loss/value"]) == pytest.approx(0.5 * (0.5 - 3.0) ** 2)


def test_approximate_kl_is_zero_for_the_same_policy():
    for log_ratio, expected in ((0.0, 0.0), (0.3, np.exp(0.3) - 1 - 0.3), (-0.3, np.exp(-0.3) - 1 + 0.3)):
        _, metrics = one_step_loss(ppo.PPOConfig(), log_ratio, 1.0)
        assert float(metrics["policy/approx_kl"]) == pytest.approx(expected, abs=1e-6)


def test_reset_rows_do_not_move_the_parameters():
    data = trajectory(p_end=0.3)
    assert not data.valid.all()
    junk = np.where(data.valid[..., None], data.observation[:-1], 1e6)
    # The observation of a reset step is the terminal one, whose value a truncated step bootstraps from; here all terminate.
    spoiled = dataclasses.replace(
        data,
        observation=np.concatenate([junk, data.observation[-1:]]).astype(np.float32),
        action=np.where(data.valid, data.action, 1 - data.action),
        extras={"behavior_log_prob": np.where(data.valid, data.extras["behavior_log_prob"], -50.0).astype(np.float32)},
    )
    (one, _), (other, _) = updated(ppo.PPOConfig(), data), updated(ppo.PPOConfig(), spoiled)
    chex.assert_trees_all_equal(one.params, other.params)


def test_early_stop_keeps_parameters_and_counts_skipped_steps():
    config = ppo.PPOConfig(learning_rate=0.05, target_kl=1e-9, num_epochs=3, num_minibatches=4)
    data = trajectory()
    state = compiled(config)[1](jax.random.key(1))
    # The behavior policy is uniform and the fresh one nearly so: the first minibatches exceed a target of next to nothing.
    after, metrics = updated(config, data)
    assert float(metrics["ppo/skipped_minibatches"]) == 12.0
    chex.assert_trees_all_equal(after.params, state.params)
    _, metrics = updated(dataclasses.replace(config, target_kl=100.0), data)
    assert float(metrics["ppo/skipped_minibatches"]) == 0.0


def test_gradients_are_clipped_by_their_global_norm():
    grads = {"a": jnp.array([3.0]), "b": jnp.array([4.0])}
    clipped, _ = optax.clip_by_global_norm(0.5).update(grads, optax.EmptyState())
    assert float(clipped["a"][0]) == pytest.approx(0.3)  # scaled together, not each to 0.5


def test_a_linear_schedule_ends_at_zero():
    config = ppo.PPOConfig(
        learning_rate_schedule=ScheduleConfig("linear"), total_updates=2, num_epochs=1, num_minibatches=2
    )
    _, init, update = compiled(config)
    state, rates = init(jax.random.key(0)), []
    for _ in range(3):
        before = state
        state, metrics = update(state, trajectory(), jax.random.key(0))
        rates.append(float(metrics["learning_rate"]))
    np.testing.assert_allclose(rates, [3e-4, 1.5e-4, 0.0], atol=1e-9)
    chex.assert_trees_all_equal(before.params, state.params)


def test_update_returns_the_structure_it_takes_and_compiles_once():
    agent = ppo.make_ppo(ppo.PPOConfig(num_epochs=1), SPEC, NETWORK)
    update = jax.jit(agent.update)
    state = jax.jit(agent.init)(jax.random.key(0))
    for number in range(3):
        new, metrics = update(state, trajectory(number), jax.random.key(number))
        chex.assert_trees_all_equal_shapes_and_dtypes(state, new)
        state = new
    assert update._cache_size() == 1
    assert int(state.num_updates) == 3
    assert all(value.dtype == jnp.float32 and value.shape == () for value in metrics.values())


def test_act_is_greedy_or_samples_with_its_log_probability():
    agent, init, _ = compiled(ppo.PPOConfig())
    params = init(jax.random.key(0)).params
    net = make_actor_critic(NETWORK, SPEC)
    observation = trajectory().observation[0]
    keys = jax.random.split(jax.random.key(3), ROWS)
    logits = net.policy(params, observation)
    greedy, _, _ = agent.act(params, observation, (), None, keys, Mode.GREEDY)
    np.testing.assert_array_equal(greedy, jnp.argmax(logits, -1))
    action, extras, _ = agent.act(params, observation, (), None, keys, Mode.SAMPLE)
    expected = np.asarray(jax.nn.log_softmax(logits))[np.arange(ROWS), np.asarray(action)]
    np.testing.assert_allclose(extras["behavior_log_prob"], expected, rtol=1e-5)


def test_minibatches_that_do_not_divide_the_steps_are_rejected():
    with pytest.raises(UserError, match="num_minibatches must divide rollout_length: got 3 and 8"):
        updated(ppo.PPOConfig(num_minibatches=3), trajectory())


@pytest.mark.parametrize("change", [{"num_epochs": 0}, {"discount": 1.1}, {"learning_rate": 0.0}])
def test_hyper_parameters_out_of_range_are_rejected(change):
    with pytest.raises(UserError, match=next(iter(change))):
        ppo.PPOConfig(**change)


def sharded_update(agent, devices, data):
    mesh = LearnerMesh(devices)
    update = mesh.jit_update(agent, jax.random.key(5))
    return update, mesh.place_state(jax.jit(agent.init)(jax.random.key(1))), jax.device_put(data, mesh.rows)


def test_over_four_devices_the_update_is_the_same():
    agent, init, update_alone = compiled(ppo.PPOConfig())
    data = trajectory(p_end=0.3)
    expected, _ = update_alone(init(jax.random.key(1)), data, jax.random.fold_in(jax.random.key(5), 0))
    update, state, batch = sharded_update(agent, jax.local_devices()[:4], data)
    update = update.lower(state, batch).compile()
    assert "all-reduce" in update.as_text()
    assert "all-gather" not in update.as_text()
    chex.assert_trees_all_close(jax.device_get(update(state, batch)[0]), jax.device_get(expected), rtol=2e-5, atol=2e-6)


def test_ppo_sharded_update_matches_pmap():
    """Plain gradient steps over the minibatches, gradients averaged over devices by pmap, written out here."""
    config = ppo.PPOConfig(normalize_advantage=False, num_epochs=2, num_minibatches=2)
    agent = ppo.make_ppo(config, SPEC, NETWORK)
    data = trajectory(p_end=0.0)
    update, state, batch = sharded_update(agent, jax.local_devices()[:4], data)
    expected = jax.device_get(update(state, batch)[0].params)

    net = make_actor_critic(NETWORK, SPEC)
    optimizer = optax.chain(
        optax.clip_by_global_norm(config.optimizer.max_grad_norm), optax.adam(config.learning_rate, eps=1e-5)
    )
    key = jax.random.fold_in(jax.random.key(5), 0)

    orders = [jax.random.permutation(epoch_key, STEPS) for epoch_key in jax.random.split(key, config.num_epochs)]
    parts = np.reshape(orders, (config.num_epochs * config.num_minibatches, -1))

    def device_update(params, opt_state, shard):
        steps, _ = ppo.make_batch(config, net, params, shard)

        def step(carry, part):
            params, opt_state = carry
            grads = jax.grad(
                lambda p: ppo.loss(config, net, p, jax.tree.map(lambda x: x[part], steps), coefficients(config))[0]
            )(params)
            updates, opt_state = optimizer.update(jax.lax.pmean(grads, "rows"), opt_state, params)
            return (optax.apply_updates(params, updates), opt_state), None

        return jax.lax.scan(step, (params, opt_state), parts)[0][0]

    shards = jax.tree.map(lambda x: np.stack(np.split(np.asarray(x), 4, axis=1)), data)
    params = jax.jit(agent.init)(jax.random.key(1)).params
    parallel = jax.pmap(device_update, axis_name="rows", in_axes=(None, None, 0), devices=jax.local_devices()[:4])
    got = jax.tree.map(lambda x: np.asarray(x)[0], parallel(params, optimizer.init(params), shards))
    chex.assert_trees_all_close(got, expected, rtol=2e-5, atol=2e-6)
