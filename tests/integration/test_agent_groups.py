"""Policies of agents that learn on devices of their own train as one learner of all of them does."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from agents.api import Mode
from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig, make_ppo
from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.errors import UserError
from jaxsrl.checkpoints.store import Arrays
from jaxsrl.evaluation.evaluate import evaluate
from jaxsrl.machine.resources import Resources
from jaxsrl.plan.fragment import Devices
from jaxsrl.plan.passes.apply import add_agent_fragments
from jaxsrl.plan.plan import plan_from_json
from jaxsrl.plan.policies import PLANS
from jaxsrl.population.policies import PoliciesConfig, make_multi_policy_agent
from jaxsrl.run_plan import RunReport, run
from jaxsrl.runs.read_checkpoint import read_saved_run
from tests.support.run_configs import run_config

TWO = PoliciesConfig('{"adversary_*": "hunters", "*": "prey"}')
THREE = PoliciesConfig('{"adversary_0": "leader", "adversary_*": "hunters", "*": "prey"}')
NETWORK = NetworkConfig(hidden_sizes=(16,))
AGENT = PPOConfig(learning_rate=1e-3, num_epochs=2, num_minibatches=2)
ROWS, STEPS, UPDATES = 16, 8, 4  # 4 environments of 3 hunters and their prey


@dataclasses.dataclass(frozen=True)
class Experiment:
    """What is saved of a run: the number of devices is not, so that it may change."""

    policies: PoliciesConfig


def parts(policies=TWO, **changes):
    pytest.importorskip("mpe2")
    settings = {
        "num_envs": ROWS,
        "pool_num_workers": 1,
        "rollout_length": STEPS,
        "total_env_steps": ROWS * STEPS * UPDATES,
        "max_policy_lag": 0,
        "plan": "dedicated_environments",
    }
    config = run_config(name="run", **{**settings, **changes})
    source = EnvConfig("simple_tag_v3", "mpe", '{"max_cycles": 10}').source()
    spec = source.spec()
    agent = make_multi_policy_agent(spec, policies, lambda own: make_ppo(AGENT, own, NETWORK))
    plan = add_agent_fragments(PLANS[config.plan](config, Resources.detect()), agent)
    return plan, agent, source, config, spec


def train(directory, policies=TWO, **changes) -> RunReport:
    plan, agent, source, config, spec = parts(policies, directory=str(directory), **changes)
    return run(plan, agent, source, config, experiment=Experiment(policies), spec=spec, quiet=True)


def plan_of(report: RunReport):
    return plan_from_json(json.loads((report.directory / "plan.json").read_text()))


def arrays_of(report: RunReport) -> Arrays:
    return read_saved_run(report.directory).arrays


def assert_close(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for mine, theirs in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(np.asarray(mine), np.asarray(theirs), rtol=1e-5, atol=1e-6)


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """What one learner of both policies comes to on one device, where they share it."""
    report = train(tmp_path_factory.mktemp("together"), learner_num_devices=1)
    assert plan_of(report).learner.placement == Devices((0,))
    return report


@pytest.mark.parametrize("num_devices", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_policies_on_separate_devices_match_one_device(tmp_path, together, num_devices):
    report = train(tmp_path, learner_num_devices=num_devices)
    half = num_devices // 2
    learners = {learner.group: learner.placement for learner in plan_of(report).learners}
    assert learners == {"hunters": Devices(tuple(range(half))), "prey": Devices(tuple(range(half, num_devices)))}
    assert_close(report.state.params, together.state.params)
    assert int(report.state.num_updates) == report.num_updates == UPDATES


@pytest.mark.slow
@pytest.mark.parametrize("num_devices", [(2, 1), (1, 2)])
def test_checkpoint_resumes_under_the_other_plan(tmp_path, together, num_devices):
    for devices, updates in zip(num_devices, (2, UPDATES), strict=True):
        report = train(tmp_path, learner_num_devices=devices, total_env_steps=ROWS * STEPS * updates)
    assert report.num_updates == UPDATES
    assert_close(report.state.params, together.state.params)
    mine, theirs = arrays_of(report), arrays_of(together)
    assert {name: (values.shape, values.dtype) for name, values in mine.items()} == {
        name: (values.shape, values.dtype) for name, values in theirs.items()
    }


@pytest.mark.slow
def test_policy_groups_resume_bit_for_bit(tmp_path):
    whole = train(tmp_path / "whole", learner_num_devices=2, max_policy_lag=1)
    for updates in (2, UPDATES):
        resumed = train(
            tmp_path / "parts", learner_num_devices=2, max_policy_lag=1, total_env_steps=ROWS * STEPS * updates
        )
    for one, other in zip(jax.tree.leaves(whole.state), jax.tree.leaves(resumed.state), strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
    assert resumed.metrics == whole.metrics


@pytest.mark.slow
def test_the_parameters_of_a_finished_run_can_be_acted_with(tmp_path):
    plan, agent, source, config, spec = parts(directory=str(tmp_path), learner_num_devices=2)
    report = run(plan, agent, source, config, spec=spec, quiet=True)
    assert evaluate(agent, report.state.params, source, episodes=2, seed=0, mode=Mode.GREEDY).returns


@pytest.mark.slow
def test_a_frozen_policy_takes_no_device_and_stays_as_it_was(tmp_path, together):
    frozen = dataclasses.replace(THREE, frozen=json.dumps({"prey": str(together.directory)}))
    report = train(tmp_path, frozen, learner_num_devices=2)
    learners = {learner.group: learner.placement for learner in plan_of(report).learners}
    assert learners == {"leader": Devices((0,)), "hunters": Devices((1,))}
    for mine, theirs in zip(
        jax.tree.leaves(report.state.params["prey"]), jax.tree.leaves(together.state.params["prey"]), strict=True
    ):
        np.testing.assert_array_equal(mine, theirs)
    alone = train(tmp_path / "one device", frozen, learner_num_devices=1)
    assert len(plan_of(alone).learners) == 1
    assert_close(report.state.params, alone.state.params)


@pytest.mark.slow
def test_record_has_metrics_of_every_policy(tmp_path):
    report = train(tmp_path, learner_num_devices=2)
    record = json.loads((report.directory / "metrics.jsonl").read_text().splitlines()[-1])
    assert all(np.isfinite(record[f"{name}/loss/total"]) for name in ("hunters", "prey"))


def test_policy_groups_reject_unfit_plans_before_start(tmp_path):
    plan, agent, source, config, spec = parts(directory=str(tmp_path), learner_num_devices=2)
    other = make_multi_policy_agent(spec, PoliciesConfig(), lambda own: make_ppo(AGENT, own, NETWORK))
    with pytest.raises(
        UserError, match="fragment learner hunters learns policy 'hunters', which agent ppo does not have"
    ):
        run(plan, other, source, config, spec=spec, quiet=True)
    fragments = tuple(
        dataclasses.replace(one, placement=Devices((0, 1, 2))) if one.group == "hunters" else one
        for one in plan.fragments
    )
    apart = dataclasses.replace(
        plan,
        fragments=tuple(
            dataclasses.replace(one, placement=Devices((3,))) if one.group == "prey" else one for one in fragments
        ),
    )
    with pytest.raises(UserError, match="fragment learner hunters: 16 rows do not divide over 3 devices"):
        run(apart, agent, source, config, spec=spec, quiet=True)
    assert not list(tmp_path.iterdir())
