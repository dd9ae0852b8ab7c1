"""Settings of policies: typed, as JSON, from flags, with algorithms of their own."""

import dataclasses
import json

import jax
import pytest

from agents.api import Agent, ReplayAgent, ReplayConfig
from agents.dqn import DQNConfig
from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig, make_ppo
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import AgentSpec, ArraySpec, DiscreteSpec, EnvSpec
from jaxsrl.collect.slot_layout import trajectory_shapes
from jaxsrl.config.run_config import RunConfig
from jaxsrl.learner.learning_agent import learning_agent
from jaxsrl.population.policies import PoliciesConfig, PolicyDefaults, make_multi_policy_agent, make_own_agents

OBSERVATION = ArraySpec((3,), "float32")
AGENTS = tuple(AgentSpec(name, OBSERVATION, DiscreteSpec(2)) for name in ("a", "b"))
SPEC = EnvSpec("e", OBSERVATION, DiscreteSpec(2), agents=AGENTS)
MAPPING = '{"a": "one", "b": "two"}'
DQN = DQNConfig(learning_rate=0.25, replay=ReplayConfig(capacity=77, min_size=7))


def defaults():
    return PolicyDefaults(PPOConfig(learning_rate=0.5), NetworkConfig(), make_ppo, RunConfig(num_envs=8), 2)


def seen(monkeypatch, policies):
    """Returns (configuration, network) of each policy with settings, by its name."""
    calls = {}
    monkeypatch.setattr(PolicyDefaults, "make_agent", lambda own, name: calls.update({name: (own.agent, own.network)}))
    for name, maker in make_own_agents(policies, defaults()).items():
        maker(name)  # pyright: ignore[reportArgumentType]
    return calls


def test_typed_settings_equal_json_settings(monkeypatch):
    network = NetworkConfig(hidden_sizes=(5,))
    typed = PoliciesConfig(MAPPING, agents={"two": DQN}, networks={"two": network})
    text = {"algorithm": "dqn", "learning_rate": 0.25, "replay": {"capacity": 77, "min_size": 7}}
    for policies in (
        typed,
        PoliciesConfig(**json.loads(json.dumps(dataclasses.asdict(typed)))),
        PoliciesConfig(MAPPING, agents=json.dumps({"two": {**text, "network": {"hidden_sizes": [5]}}})),
    ):
        calls = seen(monkeypatch, policies)
        assert list(calls) == ["two"]
        config, used = calls["two"]
        assert (config.learning_rate, config.replay, used) == (0.25, DQN.replay, network)
        assert type(config) is DQNConfig


def test_settings_without_algorithm_change_the_experiments(monkeypatch):
    config, network = seen(monkeypatch, PoliciesConfig(MAPPING, agents='{"one": {"discount": 0.75}}'))["one"]
    assert (config.learning_rate, config.discount) == (0.5, 0.75)
    assert network == NetworkConfig()


def build(**settings):
    policies = PoliciesConfig(**settings)
    return make_multi_policy_agent(SPEC, policies, defaults().make_agent, make_own_agents(policies, defaults()))


def test_policies_mix_algorithms():
    agent = build(mapping=MAPPING, agents={"two": DQN})
    assert isinstance(agent, Agent)
    assert not isinstance(agent, ReplayAgent)
    assert agent.name == "ppo+dqn"
    assert agent.bind_replay is not None
    assert [group.name for group in agent.groups] == ["one", "two"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"agents": '{"two": {"algorithm": "dqm"}}'}, "unknown algorithm 'dqm': expected one of .*dqn"),
        ({"agents": '{"two": 3}'}, "policies.agents must be a JSON object of objects"),
        (
            {"agents": '{"three": {"discount": 0.5}}'},
            r"policies \['three'\] cannot have settings: expected some of \['one', 'two'\]",
        ),
        ({"agents": '{"two": {"learning_rat": 0.5}}'}, "unknown option learning_rat: did you mean learning_rate"),
        ({"agents": '{"two": {"discount": "high"}}'}, "discount"),
        ({"agents": {"two": 3}}, "no algorithm has the configuration 3"),
        ({"networks": {"two": 3}}, "expected a NetworkConfig for policy 'two', got 3"),
        ({"mapping": "{}", "agents": '{"two": {"discount": 0.5}}'}, "cannot have settings: no agent is mapped to them"),
    ],
)
def test_invalid_settings_are_rejected(settings, message):
    with pytest.raises(UserError, match=message):
        build(**{"mapping": MAPPING, **settings})


def test_buffers_hold_stacks_of_own_rows():
    frames = ArraySpec((2, 3), "float32", frames=2)
    agents = tuple(AgentSpec(name, frames, DiscreteSpec(2)) for name in ("a", "b"))
    spec = EnvSpec("e", frames, DiscreteSpec(2), agents=agents)
    policies = PoliciesConfig(MAPPING, agents={"two": DQN})
    agent = make_multi_policy_agent(spec, policies, defaults().make_agent, make_own_agents(policies, defaults()))
    bound = learning_agent(agent, spec, 8, 4)
    state = jax.eval_shape(bound.init, jax.random.key(0))
    assert set(state.extra["one"]) == {"entropy_coef_factor"}
    assert state.extra["two"].buffer.storage.observation.shape[1:] == (4, 2, 3)  # rows of "b", stacks
    after, metrics = jax.eval_shape(bound.update, state, trajectory_shapes(bound, spec, 8, 4), jax.random.key(0))
    assert jax.tree.structure(after) == jax.tree.structure(state)
    assert "two/replay/size" in metrics
