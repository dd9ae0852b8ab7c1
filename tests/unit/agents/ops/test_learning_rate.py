"""The learning rate is a function of the number of updates, however many gradient steps were skipped; the metric reports it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from agents import ppo
from agents.api import Mode
from agents.ops.gradient_steps import make_update
from agents.ops.schedules import CONSTANT, ScheduleConfig, make_schedule
from agents.transforms.multi_policy import make_policies
from envpool_bridge.spec.specs import AgentSpec
from jaxsrl.learner.mesh import LearnerMesh
from jaxsrl.learner.parameter_server.synchronous import SynchronousUpdate
from tests.unit.agents.test_ppo import NETWORK, ROWS, SPEC, STEPS, trajectory

UPDATES, INITIAL = 20, 1e-2
# Of the four steps of an update, only the first has a KL below the target: it starts at the policy that acted.
CONFIG = ppo.PPOConfig(
    learning_rate=INITIAL,
    learning_rate_schedule=ScheduleConfig("linear"),
    total_updates=UPDATES,
    target_kl=1e-9,
    num_epochs=2,
    num_minibatches=2,
)
KEY = jax.random.key(5)


def acted(agent, params, number):
    """A trajectory whose actions `params` chose."""
    data = trajectory(number, p_end=0.0)
    keys = jax.random.split(jax.random.key(number), STEPS * ROWS)
    flat = data.observation[:-1].reshape(STEPS * ROWS, 3)
    action, extras, _ = agent.act(params, flat, (), None, keys, Mode.SAMPLE)
    by_step = jax.tree.map(lambda leaf: leaf.reshape(STEPS, ROWS), (action, extras))
    return dataclasses.replace(data, action=by_step[0], extras=by_step[1])


def plain(agent):
    update = jax.jit(agent.update)
    return lambda state, batch, number: update(state, batch, jax.random.fold_in(KEY, number))


def served(agent):
    mesh = LearnerMesh(jax.local_devices()[:1])
    update = SynchronousUpdate(agent.gradient_steps, mesh, jax.local_devices()[1], KEY)

    def one(state, batch, number):
        del number  # the update folds it into the key itself
        return jax.device_get(update(mesh.place_state(state), jax.device_put(batch, mesh.rows)))

    return one


@pytest.mark.parametrize("how", [plain, pytest.param(served, marks=pytest.mark.slow)])
def test_linear_rate_counts_skipped_steps(how):
    agent = ppo.make_ppo(CONFIG, SPEC, NETWORK)
    steps, update = agent.gradient_steps, how(agent)
    prepare, gradient = jax.jit(steps.prepare), jax.jit(steps.gradient)
    state = jax.device_get(jax.jit(agent.init)(jax.random.key(1)))
    # Directions of length-1 steps, by a second optimizer that sees the first gradient of each update and no rate.
    directions = optax.chain(optax.clip_by_global_norm(CONFIG.optimizer.max_grad_norm), optax.scale_by_adam(eps=1e-5))
    moments, used, reported = directions.init(state.params), [], []
    for number in range(UPDATES):
        batch = acted(agent, state.params, number)
        prepared, _ = prepare(state.params, state.extra, batch, jax.random.fold_in(KEY, number), number)
        grads, _ = gradient(state.params, prepared, jnp.int32(0))
        direction, moments = directions.update(grads, moments)
        before, (state, metrics) = state.params, update(state, batch, number)
        assert float(metrics["ppo/skipped_minibatches"]) == 3.0
        step = jax.tree.map(lambda old, new: old - new, before, state.params)
        taken, unit = (np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)]) for tree in (step, direction))
        used.append(taken @ unit / (unit @ unit))
        reported.append(float(metrics["learning_rate"]))
    expected = INITIAL * (1.0 - np.arange(UPDATES) / UPDATES)
    np.testing.assert_allclose(used, expected, rtol=1e-3)
    np.testing.assert_allclose(reported, expected, rtol=1e-5)


@pytest.mark.slow
def test_each_of_several_policies_has_the_rate_of_the_update():
    members = tuple(AgentSpec(name, SPEC.observation, SPEC.action) for name in ("one", "two"))
    spec = dataclasses.replace(SPEC, agents=members)
    config = dataclasses.replace(CONFIG, learning_rate=1e-3)
    configs = iter([CONFIG, config])
    agent = make_policies(spec, {"one": "a", "two": "b"}, lambda own: ppo.make_ppo(next(configs), own, NETWORK))
    update, state, rates = jax.jit(agent.update), jax.jit(agent.init)(jax.random.key(1)), []
    for number in range(3):
        data = trajectory(number)
        extras = {f"{policy}/{name}": leaf for policy in "ab" for name, leaf in data.extras.items()}
        batch = dataclasses.replace(data, agent_state=(), extras=extras)
        state, metrics = update(state, batch, jax.random.key(number))
        rates.append([float(metrics[f"{name}/learning_rate"]) for name in "ab"])
    falling = 1.0 - np.arange(3)[:, None] / UPDATES
    np.testing.assert_allclose(rates, falling * [INITIAL, 1e-3], rtol=1e-5)


def test_a_rate_is_constant_within_an_update():
    config = dataclasses.replace(CONFIG, target_kl=None, total_updates=2)
    agent = ppo.make_ppo(config, SPEC, NETWORK)
    state = jax.jit(agent.init)(jax.random.key(1))
    halved = dataclasses.replace(state, num_updates=jnp.int32(1))
    constant = dataclasses.replace(config, learning_rate=INITIAL / 2, learning_rate_schedule=CONSTANT)
    got, _ = jax.jit(make_update(agent.gradient_steps))(halved, trajectory(0), KEY)
    expected, _ = jax.jit(ppo.make_ppo(constant, SPEC, NETWORK).update)(halved, trajectory(0), KEY)
    for one, other in zip(*map(jax.tree.leaves, (got.params, expected.params)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-8)


def test_a_schedule_is_of_the_number_of_updates():
    rate = make_schedule(ScheduleConfig("linear"), 0.5, total_updates=4)
    assert [float(rate(number)) for number in (0, 2, 4, 9)] == [0.5, 0.25, 0.0, 0.0]
