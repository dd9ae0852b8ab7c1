"""Agents mapped to policies by a configuration; frozen ones take their parameters from other runs."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig, make_ppo
from envpool_bridge.envs.gymnasium_env import GymnasiumSource
from envpool_bridge.envs.multi_agent_env import ParallelSource
from envpool_bridge.envs.probes.single_agent import PROBES
from envpool_bridge.errors import UserError
from jaxsrl.checkpoints.store import CheckpointStore, flatten
from jaxsrl.config.run_config import RunConfig
from jaxsrl.config.serialization import to_json
from jaxsrl.population.policies import (
    PoliciesConfig,
    PolicyDefaults,
    load_policy_params,
    make_multi_policy_agent,
    rebuild_multi_policy_agent,
)
from tests.support.scripted_agents import Scripted

SPEC = ParallelSource(Scripted).spec()
THREE = '{"a": "one", "b": "two", "c": "three"}'


def make_agent(spec, hidden=8):
    return make_ppo(PPOConfig(), spec, NetworkConfig(hidden_sizes=(hidden,)))


def saved(directory, agent, policies, seed=1):
    """A run directory whose newest checkpoint holds the agent's first parameters."""
    state = agent.init(jax.random.key(seed))
    metadata = {"agent_name": agent.name, "experiment": {"policies": to_json(policies)} if policies else {}}
    CheckpointStore(directory / "checkpoints").save(3, flatten(state, "learner"), metadata)
    return state.params


def same(one, other):
    one, other = jax.tree.leaves(one), jax.tree.leaves(other)
    return len(one) == len(other) and all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_each_policy_has_parameters_of_its_own():
    params = make_multi_policy_agent(SPEC, PoliciesConfig(THREE), make_agent).init(jax.random.key(0)).params
    assert sorted(params) == ["one", "three", "two"]


def test_the_last_update_on_a_dataset_still_learns():
    """Update 5 of 5 learns after it was counted."""
    configs = []
    for run in (
        RunConfig(plan="offline", gradient_steps=5_000),
        RunConfig(total_env_steps=RunConfig().env_steps_per_update * 5),
    ):
        PolicyDefaults(
            PPOConfig(), NetworkConfig(), lambda config, spec, network: configs.append(config), run, 1
        ).make_agent(SPEC)
        assert run.num_updates == 5
    assert [config.total_updates for config in configs] == [6, 5]


def test_without_a_mapping_one_policy_acts_for_all():
    spec = GymnasiumSource(next(iter(PROBES.values()))).spec()
    agent = make_multi_policy_agent(spec, PoliciesConfig(), make_agent)
    assert same(agent.init(jax.random.key(0)).params, make_agent(spec).init(jax.random.key(0)).params)
    with pytest.raises(UserError, match="have different actions, so one policy cannot choose for all of them"):
        make_multi_policy_agent(SPEC, PoliciesConfig(), make_agent)


def test_frozen_policy_loads_the_policy_of_its_name(tmp_path):
    theirs = saved(tmp_path, make_multi_policy_agent(SPEC, PoliciesConfig(THREE), make_agent), PoliciesConfig(THREE))
    policies = PoliciesConfig(THREE, json.dumps({"two": str(tmp_path)}))
    params = make_multi_policy_agent(SPEC, policies, make_agent).init(jax.random.key(9)).params
    assert same(params["two"], theirs["two"])
    assert not same(params["one"], theirs["one"])


def test_frozen_policy_loads_the_only_policy(tmp_path):
    class Lonely(Scripted):
        possible_agents = ("b",)

        def __init__(self):
            super().__init__()
            self.possible_agents = ["b"]

        def observation_space(self, agent):
            return Scripted().observation_space(agent)

        def action_space(self, agent):
            return Scripted().action_space(agent)

    alone = make_multi_policy_agent(ParallelSource(Lonely).spec(), PoliciesConfig(), make_agent)
    for policies in (None, PoliciesConfig()):
        directory = tmp_path / str(policies is None)
        theirs = saved(directory, alone, policies)
        frozen = PoliciesConfig(THREE, json.dumps({"two": str(directory / "checkpoints" / "3")}))
        assert same(make_multi_policy_agent(SPEC, frozen, make_agent).init(jax.random.key(9)).params["two"], theirs)


def test_rebuild_needs_no_source_of_frozen_policies(tmp_path):
    saved(tmp_path, make_multi_policy_agent(SPEC, PoliciesConfig(THREE), make_agent), PoliciesConfig(THREE))
    policies = PoliciesConfig(THREE, json.dumps({"two": str(tmp_path)}))
    agent = make_multi_policy_agent(SPEC, policies, make_agent)
    gone = dataclasses.replace(policies, frozen='{"two": "nowhere"}')
    remade = rebuild_multi_policy_agent(SPEC, gone, make_agent)
    shapes = jax.eval_shape(agent.init, jax.random.key(0))
    assert jax.eval_shape(remade.init, jax.random.key(0)) == shapes
    assert shapes.opt_state["two"] == ()


@pytest.mark.parametrize(
    ("policies", "says"),
    [
        ({"mapping": '{"x_*": "one"}'}, r"no agent is called 'x_\*': expected names or patterns of \['a', 'b', 'c'\]"),
        ({"mapping": '{"a": "one"}'}, "agent 'b' has no policy"),
        ({"mapping": THREE, "frozen": '{"four": "run"}'}, r"policies \['four'\] cannot be frozen: expected some of"),
        ({"frozen": '{"one": "run"}'}, "cannot be frozen: no agent is mapped to them"),
        (
            {"mapping": THREE, "frozen": '{"two": "nowhere"}'},
            "frozen policy 'two': nowhere is no checkpoint and no run",
        ),
        ({"mapping": '{"*": "all"}'}, "have different actions"),
        ({"mapping": "{"}, r"policies.mapping: expected a JSON object, got '\{'"),
        ({"mapping": '{"a": 1}'}, "policies.mapping must be a JSON object of strings"),
        (
            {"frozen": "[]"},
            "policies.frozen: expected NAME=VALUE fields, or a dict or JSON object of JSON values, got '.*'",
        ),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_starts(policies, says):
    with pytest.raises(UserError, match=says):
        make_multi_policy_agent(SPEC, PoliciesConfig(**policies), make_agent)


def test_load_policy_params_rejects_other_networks(tmp_path):
    saved(tmp_path, make_multi_policy_agent(SPEC, PoliciesConfig(THREE), make_agent), PoliciesConfig(THREE))
    frozen = PoliciesConfig(THREE, json.dumps({"two": str(tmp_path)}))
    with pytest.raises(
        UserError, match=r"frozen policy 'two' cannot use the parameters of .*/checkpoints/3: (.|\n)*missing"
    ):
        make_multi_policy_agent(
            SPEC, frozen, lambda spec: make_ppo(PPOConfig(), spec, NetworkConfig(hidden_sizes=(8, 8)))
        )
    with pytest.raises(UserError, match=r"expected float32\[\d+, 16\], got float32"):
        make_multi_policy_agent(SPEC, frozen, lambda spec: make_agent(spec, hidden=16))
    other = json.dumps({"a": "two", "b": "one", "c": "three"})
    with pytest.raises(UserError, match=r"frozen policy 'two' cannot use"):
        make_multi_policy_agent(SPEC, PoliciesConfig(other, frozen.frozen), make_agent)
    unknown = PoliciesConfig(THREE.replace("two", "new"), frozen.frozen.replace("two", "new"))
    with pytest.raises(UserError, match="frozen policy 'new': .* has policies one, three, two"):
        make_multi_policy_agent(SPEC, unknown, make_agent)


def test_a_damaged_checkpoint_is_refused(tmp_path):
    saved(tmp_path, make_multi_policy_agent(SPEC, PoliciesConfig(THREE), make_agent), PoliciesConfig(THREE))
    files = [path for path in (tmp_path / "checkpoints" / "3" / "state").rglob("*") if path.is_file()]
    files[0].write_bytes(b"damage")
    with pytest.raises(UserError, match="frozen policy 'two': no checkpoint of this run is whole"):
        load_policy_params(make_agent(SPEC), "two", tmp_path)
    with pytest.raises(UserError, match="frozen policy 'two': damaged checkpoint"):
        load_policy_params(make_agent(SPEC), "two", tmp_path / "checkpoints" / "3")
