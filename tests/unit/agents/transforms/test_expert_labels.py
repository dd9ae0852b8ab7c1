"""DAgger: who acts, labels of the expert, gradient steps towards them, and a probe that is learned from labels alone."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.api import LearnerState, Mode, ReplayConfig, Sample
from agents.networks.config import NetworkConfig
from agents.offline.bc import BCConfig, make_bc
from agents.ops.epsilon_greedy import epsilon_schedule
from agents.transforms.expert_labels import LABEL, Expert, with_expert_labels
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec
from tests.contract.replaying_agents import sample_for
from tests.learning.probe_runs import probe_source, trained

KEY, ROWS = jax.random.key(3), 400
SPEC = EnvSpec("test", ArraySpec((3,), "float32"), DiscreteSpec(3))
CONTINUOUS = dataclasses.replace(SPEC, action=ArraySpec((2,), "float32", -2.0, 2.0))
NETWORK = NetworkConfig(hidden_sizes=(5,))
ACTIONS = {SPEC: np.array([2, 0], np.int32), CONTINUOUS: np.array([[-1.5, 0.5], [1.0, 2.0]], np.float32)}
"""Of the expert: where the first number of an observation is negative, and where it is positive."""


def expert_act(params, observation, agent_state, is_first, keys, mode):
    assert mode is Mode.GREEDY
    del is_first, keys
    return jnp.asarray(params["action"])[(observation[:, 0] > 0).astype(int)], {}, agent_state


def labeled(spec, share=lambda num_updates: jnp.float32(0.3), expert=True):
    plain = make_bc(BCConfig(), spec, NETWORK)
    return plain, with_expert_labels(
        plain, spec, Expert(expert_act, {"action": ACTIONS[spec]}) if expert else None, share
    )


def act(agent, params, mode=Mode.SAMPLE):
    observation = np.random.default_rng(0).normal(size=(ROWS, 3)).astype(np.float32)
    keys = jax.random.split(jax.random.key(1), ROWS)
    run = jax.jit(partial(agent.act, mode=mode))
    return observation, *jax.device_get(run(params, observation, (), np.zeros(ROWS, bool), keys)[:2])


@pytest.mark.parametrize("spec", [SPEC, CONTINUOUS], ids=["discrete", "continuous"])
def test_the_expert_labels_all_steps_and_acts_in_its_share(spec):
    plain, agent = labeled(spec)
    params = agent.init(KEY).params
    observation, action, extras = act(agent, params)
    expected = ACTIONS[spec][(observation[:, 0] > 0).astype(int)]
    np.testing.assert_array_equal(extras[LABEL], expected)
    assert extras[LABEL].dtype == agent.extras[LABEL].dtype
    own = act(agent, {**params, "expert_share": jnp.float32(0.0)})[1]
    by_expert = (action != own).reshape(ROWS, -1).any(1)
    np.testing.assert_array_equal(action[by_expert], expected[by_expert])
    chance = np.mean((own != expected).reshape(ROWS, -1).any(1))
    assert by_expert.mean() == pytest.approx(0.3 * chance, abs=0.06)
    np.testing.assert_array_equal(act(agent, {**params, "expert_share": jnp.float32(1.0)})[1], expected)
    greedy = act(agent, params, Mode.GREEDY)[1]
    np.testing.assert_array_equal(greedy, act(plain, params["agent"], Mode.GREEDY)[1])


def test_a_loaded_agent_acts_without_its_expert():
    _, agent = labeled(SPEC)
    _, loaded = labeled(SPEC, expert=False)
    params = agent.init(KEY).params
    assert jax.tree.structure(params) == jax.tree.structure(loaded.init(KEY).params)
    np.testing.assert_array_equal(act(loaded, params, Mode.GREEDY)[1], act(agent, params, Mode.GREEDY)[1])


def test_a_step_is_that_of_bc_towards_the_labels():
    plain, agent = labeled(SPEC)
    state, sample = agent.init(KEY), sample_for("bc", plain)
    labels = (sample.trajectory.action + 1) % 3
    steps = dataclasses.replace(sample.trajectory, extras={LABEL: labels})
    new, metrics, priority = agent.update(state, dataclasses.replace(sample, trajectory=steps), KEY)
    taught = dataclasses.replace(sample.trajectory, action=labels)
    inner = dataclasses.replace(state, params=state.params["agent"])
    expected, _, expected_priority = plain.update(inner, dataclasses.replace(sample, trajectory=taught), KEY)
    jax.tree.map(np.testing.assert_array_equal, new.params["agent"], expected.params)
    jax.tree.map(np.testing.assert_array_equal, new.opt_state, expected.opt_state)
    np.testing.assert_array_equal(priority, expected_priority)
    assert float(metrics["imitation/expert_share"]) == pytest.approx(0.3)
    assert isinstance(sample, Sample)
    assert isinstance(new, LearnerState)


def test_the_share_of_the_expert_falls_to_zero():
    _, agent = labeled(SPEC, epsilon_schedule(1.0, 0.0, 0.5, 20))
    state, sync = agent.init(KEY), agent.data.sync_acting_params
    assert sync is not None
    shares = [
        float(sync(dataclasses.replace(state, num_updates=jnp.int32(number))).params["expert_share"])
        for number in (0, 5, 10, 20)
    ]
    np.testing.assert_allclose(shares, [1.0, 0.5, 0.0, 0.0], atol=1e-6)


def test_actions_of_several_parts_are_rejected():
    spec = dataclasses.replace(SPEC, action={"move": DiscreteSpec(2), "turn": DiscreteSpec(2)})
    with pytest.raises(UserError, match="several parts"):
        with_expert_labels(make_bc(BCConfig(), spec, NETWORK), spec, None, lambda number: jnp.float32(1.0))


def test_a_probe_is_learned_from_labels(tmp_path):
    """The rewards of the probe would teach the opposite."""
    replay = ReplayConfig(capacity=1000, batch_size=32, min_size=32, gradient_steps_per_env_step=0.25)

    def make(spec):
        plain = make_bc(BCConfig(replay, learning_rate=1e-2), spec, NETWORK)
        expert = Expert(partial(expert_act), {"action": np.array([1, 0], np.int32)})
        return with_expert_labels(plain, spec, expert, lambda num_updates: jnp.float32(0.0))  # the student acts alone

    _, agent, params = trained(tmp_path, probe_source("MatchObservation"), make, rows=8, steps=8, updates=20)
    observation = np.array([[-1.0], [1.0]], np.float32)
    keys = jax.random.split(KEY, 2)
    action = agent.act(params, observation, (), np.zeros(2, bool), keys, Mode.GREEDY)[0]
    assert action.tolist() == [1, 0]
