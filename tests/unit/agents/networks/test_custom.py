"""A network of the user's own learns as ours do."""

import chex
import jax
import numpy as np
import pytest

from agents.api import Mode, Trajectory
from agents.networks.actor_critic import make_actor_critic
from agents.networks.config import NetworkConfig
from agents.networks.custom import bound_network, memoryless_network
from agents.ppo import PPOConfig, make_ppo
from agents.reinforce import REINFORCEConfig, make_reinforce
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec

SPEC = EnvSpec("test", ArraySpec((3,), "float32"), DiscreteSpec(2))
NETWORK = NetworkConfig(hidden_sizes=(4,))
STEPS, ROWS = 4, 2


def trajectory():
    rng = np.random.default_rng(0)
    no = np.zeros((STEPS, ROWS), bool)
    return Trajectory(
        observation=rng.normal(size=(STEPS + 1, ROWS, 3)).astype(np.float32),
        is_first=np.zeros((STEPS + 1, ROWS), bool),
        action=rng.integers(0, 2, (STEPS, ROWS)).astype(np.int32),
        reward=rng.normal(size=(STEPS, ROWS)).astype(np.float32),
        terminated=no,
        truncated=no,
        valid=~no,
        policy_version=np.zeros((STEPS, ROWS), np.int32),
        extras={"behavior_log_prob": np.full((STEPS, ROWS), np.log(0.5), np.float32)},
    )


def both_of(net):
    return lambda params, observation: net.unroll(params, observation, (), None)[:2]


@pytest.mark.slow
def test_custom_network_learns_like_configured_network():
    ours = make_actor_critic(NETWORK, SPEC)
    own = memoryless_network(ours.init, both_of(ours), ours.distribution)
    results = []
    for network in (NETWORK, own):
        agent = make_ppo(PPOConfig(num_epochs=1, num_minibatches=2), SPEC, network)
        state = jax.jit(agent.init)(jax.random.key(0))
        state, _ = jax.jit(agent.update)(state, trajectory(), jax.random.key(1))
        acted = jax.jit(agent.act, static_argnums=5)(
            state.params,
            np.ones((ROWS, 3), np.float32),
            agent.initial_agent_state(ROWS),
            np.ones(ROWS, bool),
            jax.random.split(jax.random.key(2), ROWS),
            Mode.SAMPLE,
        )
        results.append((state, acted))
    chex.assert_trees_all_equal(*results)


def test_agents_of_one_step_take_such_a_network_too():
    ours = make_actor_critic(NETWORK, SPEC)
    own = memoryless_network(ours.init, both_of(ours), ours.distribution)
    results = []
    for network in (NETWORK, own):
        agent = make_reinforce(REINFORCEConfig(), SPEC, network)
        state = jax.jit(agent.init)(jax.random.key(0))
        results.append(jax.jit(agent.update)(state, trajectory(), jax.random.key(1))[0])
    chex.assert_trees_all_equal(*results)


def test_bound_network_returns_custom_network_unchanged():
    ours = make_actor_critic(NETWORK, SPEC)
    own = memoryless_network(ours.init, lambda params, observation: ("policy", "value"), ours.distribution)
    assert bound_network(own, SPEC) is own
    assert (own.policy(None, None), own.value(None, None)) == ("policy", "value")
    assert own.step(None, None, (), None) == ("policy", ())
    assert own.unroll(None, None, (), None) == ("policy", "value", ())
    assert not own.is_recurrent
