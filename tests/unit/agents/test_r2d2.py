"""R2D2 on a table of values with a memory, against loops over windows; its priorities against hand values."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.api import Sample, Trajectory
from agents.dqn import build_dqn
from agents.networks.config import NetworkConfig
from agents.networks.q_network import QNetwork
from agents.r2d2 import R2D2Config, initial_priority, loss, make_r2d2
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec

STATES, ACTIONS = 7, 3
SPEC = EnvSpec("test", ArraySpec((2,), "float32"), DiscreteSpec(ACTIONS))
NETWORK = NetworkConfig(hidden_sizes=(8,), core="gru", core_size=4)
CONFIG = R2D2Config(
    burn_in=3,
    sequence_length=4,
    n_step=2,
    discount=0.9,
    epsilon_start=0.1,
    epsilon_end=0.1,
    apex_alpha=0.0,
    total_updates=10,
    stride=4,
)


def remembering_table(dqn):
    """Returns DQN with values table[observation] + 0.1 memory; the memory counts the steps of the episode."""

    def unroll(params, observation, state, is_first, noise):
        def step(memory, inputs):
            seen, first = inputs
            memory = jnp.where(first, 0.0, memory) + 1.0
            return memory, jnp.asarray(params)[seen] + 0.1 * memory[:, None, None]

        state, outputs = jax.lax.scan(step, state, (observation, is_first))
        return outputs, state

    net = QNetwork(dqn.net.init, None, unroll, lambda n: jnp.zeros(n), lambda p, o: None, ACTIONS, True)
    return dqn._replace(net=net)


def windows(num_windows=24, seed=0, num_steps=CONFIG.window_length):
    rng = np.random.default_rng(seed)
    terminated, truncated = rng.random((2, num_steps, num_windows)) < 0.1
    valid = np.ones((num_steps, num_windows), bool)
    before = rng.random(num_windows) < 0.2
    first_after = []
    for t in range(num_steps):
        valid[t] = ~before
        terminated[t] &= valid[t]
        truncated[t] &= valid[t] & ~terminated[t]
        first_after.append(before)  # the observation after a step that only resets begins an episode
        before = terminated[t] | truncated[t]
    return Trajectory(
        observation=rng.integers(0, STATES, (num_steps + 1, num_windows)).astype(np.int32),
        is_first=np.concatenate([rng.random((1, num_windows)) < 0.3, np.array(first_after)]),
        action=rng.integers(0, ACTIONS, (num_steps, num_windows)).astype(np.int32),
        reward=rng.normal(size=(num_steps, num_windows), scale=3.0).astype(np.float32),
        terminated=terminated,
        truncated=truncated,
        valid=valid,
        policy_version=np.zeros((num_steps, num_windows), np.int32),
        extras={},
        agent_state=rng.integers(0, 5, num_windows).astype(np.float32),
    )


def h(x):
    return np.sign(x) * (np.sqrt(abs(x) + 1) - 1) + 1e-3 * x


def inverse_of_h(y):
    return np.sign(y) * (((np.sqrt(1 + 4e-3 * (abs(y) + 1 + 1e-3)) - 1) / 2e-3) ** 2 - 1)


def errors_by_loop(steps, online, target):
    """[length, N], NaN where a step only resets: every window is walked from its stored memory."""
    result = np.full((CONFIG.sequence_length, steps.reward.shape[1]), np.nan)
    for n in range(result.shape[1]):
        memory, memories = steps.agent_state[n], []
        for first in steps.is_first[:, n]:
            memory = (0.0 if first else memory) + 1.0
            memories.append(0.1 * memory)
        for k in range(CONFIG.sequence_length):
            t = CONFIG.burn_in + k
            if not steps.valid[t, n]:
                continue
            total, weight, end = 0.0, 1.0, t
            for _ in range(CONFIG.n_step):
                total, weight, end = total + weight * steps.reward[end, n], weight * CONFIG.discount, end + 1
                if steps.terminated[end - 1, n] or steps.truncated[end - 1, n]:
                    break
            if not steps.terminated[end - 1, n]:
                seen = steps.observation[end, n]
                total += weight * inverse_of_h(target[seen, np.argmax(online[seen])] + memories[end])
            result[k, n] = h(total) - online[steps.observation[t, n], steps.action[t, n]] - memories[t]
    return result


def test_r2d2_errors_and_priorities_equal_a_loop():
    dqn, steps = remembering_table(build_dqn(CONFIG, SPEC, NETWORK)), windows()
    online, target = np.random.default_rng(1).normal(size=(2, STATES, ACTIONS, 1)).astype(np.float32) * 2
    weight = np.random.default_rng(2).random(24).astype(np.float32)
    total, (_, priority) = jax.jit(partial(loss, CONFIG, dqn))(online, target, steps, weight, jax.random.key(0))
    errors = errors_by_loop(steps, online[..., 0], target[..., 0])
    counted = ~np.isnan(errors)
    assert 0 < counted.sum() < errors.size
    size = np.abs(np.nan_to_num(errors))
    expected = 0.9 * size.max(0) + 0.1 * size.sum(0) / np.maximum(counted.sum(0), 1)
    np.testing.assert_allclose(priority, expected, rtol=1e-3, atol=1e-4)
    # Summed over the steps of a window, averaged over the 24 windows.
    np.testing.assert_allclose(total, (0.5 * size**2 * weight).sum() / 24, rtol=1e-3)


def test_without_ends_errors_are_rlaxs_transformed_n_step_errors():
    rlax = pytest.importorskip("rlax")
    config = dataclasses.replace(CONFIG, burn_in=0)
    steps = windows(1, seed=3, num_steps=config.window_length)
    never = np.zeros_like(steps.valid)
    is_first = np.zeros_like(steps.is_first)
    steps = dataclasses.replace(steps, terminated=never, truncated=never, valid=~never, is_first=is_first)
    dqn = remembering_table(build_dqn(config, SPEC, NETWORK))
    online, target = np.random.default_rng(4).normal(size=(2, STATES, ACTIONS, 1)).astype(np.float32)
    total, _ = jax.jit(partial(loss, config, dqn))(online, target, steps, np.ones(1, np.float32), jax.random.key(0))
    memory = 0.1 * (steps.agent_state + 1 + np.arange(config.window_length + 1, dtype=np.float32))[:, None]
    q, q_target = (table[steps.observation[:, 0], :, 0] + memory for table in (online, target))
    errors = jax.jit(partial(rlax.transformed_n_step_q_learning, n=2, tx_pair=rlax.SIGNED_HYPERBOLIC_PAIR))(
        q[:-1],
        steps.action[:, 0],
        q_target[1:],
        np.argmax(q[1:], -1),
        steps.reward[:, 0],
        np.full(config.window_length, config.discount, np.float32),
    )
    np.testing.assert_allclose(total, 0.5 * np.sum(np.square(errors[: config.sequence_length])), rtol=1e-3)


def test_no_gradient_passes_through_the_burn_in():
    for burn_in, passes in ((0, True), (3, False)):
        config = dataclasses.replace(CONFIG, burn_in=burn_in)
        dqn, steps = remembering_table(build_dqn(config, SPEC, NETWORK)), windows(4, num_steps=config.window_length)
        steps = dataclasses.replace(steps, is_first=np.zeros_like(steps.is_first))
        table = np.random.default_rng(5).normal(size=(STATES, ACTIONS, 1)).astype(np.float32)

        def of_memory(state, config=config, dqn=dqn, steps=steps, table=table):
            begun = dataclasses.replace(steps, agent_state=state)
            return loss(config, dqn, table, table, begun, np.ones(4, np.float32), jax.random.key(0))[0]

        assert bool(jax.jit(jax.grad(of_memory))(steps.agent_state).any()) is passes


def test_r2d2_initial_priority_skips_burn_in():
    dqn, num_starts = build_dqn(CONFIG, SPEC, NETWORK), 3
    steps = windows(2, num_steps=num_starts + CONFIG.window_length - 1)
    never = np.zeros_like(steps.valid)
    steps = dataclasses.replace(
        steps,
        terminated=~never,  # so that each error is its own reward's, less the value
        truncated=never,
        valid=~never,
        extras={"value": np.zeros_like(steps.reward), "max_value": np.ones_like(steps.reward)},
    )
    priority = np.asarray(initial_priority(CONFIG, dqn, steps))
    assert priority.shape == (num_starts, 2)
    size = np.abs(h(steps.reward))
    for t in range(num_starts):
        of_window = size[t + CONFIG.burn_in : t + CONFIG.burn_in + CONFIG.sequence_length]
        np.testing.assert_allclose(priority[t], 0.9 * of_window.max(0) + 0.1 * of_window.mean(0), rtol=1e-4)


@pytest.mark.slow
def test_r2d2_learns_from_stored_states_with_apex_rates():
    config = dataclasses.replace(
        CONFIG, epsilon_start=0.4, epsilon_end=0.4, apex_alpha=7.0, sequence_length=2, burn_in=1
    )
    agent = make_r2d2(config, SPEC, NETWORK)
    steps = windows(4, num_steps=config.window_length)
    steps = dataclasses.replace(
        steps,
        observation=np.zeros((*steps.observation.shape, 2), np.float32),
        agent_state=agent.initial_agent_state(4),
    )
    sample = Sample(steps, np.full(4, 0.1, np.float32), np.int32(10))
    first = jax.jit(agent.init)(jax.random.key(0))
    state, metrics, priority = jax.jit(agent.update)(first, sample, jax.random.key(1))
    assert priority.shape == (4,)
    assert int(state.extra.num_gradient_steps) == 1
    assert np.isfinite(metrics["loss/total"])
    moved = jax.tree.map(
        lambda a, b: bool((a != b).any()), first.params["network"]["core"], state.params["network"]["core"]
    )
    assert any(jax.tree.leaves(moved))


def test_r2d2_rejects_invalid_settings():
    with pytest.raises(UserError, match=r"expected network.core 'lstm', 'gru' or 'gtrxl', got 'none'; use it, or DQN"):
        make_r2d2(CONFIG, SPEC, NetworkConfig())
    for settings, message in (
        ({"burn_in": -1}, "burn_in must not be negative"),
        ({"sequence_length": 0}, "sequence_length must be at least 1"),
        ({"priority_eta": 1.5}, r"priority_eta must lie in \[0, 1\]"),
        ({"n_step": 0}, "n_step must be at least 1"),
    ):
        with pytest.raises(UserError, match=message):
            R2D2Config(**settings)
