"""Several policies in one environment train alike under every plan, resume, and are evaluated from what the run left."""

import importlib.util
import json
import sys

import jax
import numpy as np
import pytest

import jaxsrl.cli.main
from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig, make_ppo
from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.envs.protocol import EpisodeReset, first_rows, step_rows
from envpool_bridge.envs.seeding import EpisodeSeeds
from envpool_bridge.errors import UserError
from envpool_bridge.shm.layout import PoolShape, make_layout
from envpool_bridge.shm.slots import allocate_slots
from jaxsrl.envs.registry import make_env
from jaxsrl.experiment import Experiment
from jaxsrl.machine.resources import Resources
from jaxsrl.plan.policies import PLANS
from jaxsrl.population.policies import PoliciesConfig, make_multi_policy_agent
from jaxsrl.run_plan import run
from tests.support.run_configs import run_config

TWO = PoliciesConfig('{"adversary_*": "hunters", "*": "prey"}')
NETWORK = NetworkConfig(hidden_sizes=(16,))
AGENT = PPOConfig(learning_rate=1e-3, num_epochs=2, num_minibatches=2)
ROWS, STEPS = 16, 8  # 4 environments of 3 hunters and their prey


def train(directory, policies=TWO, **changes):
    pytest.importorskip("mpe2")
    settings = {"num_envs": ROWS, "rollout_length": STEPS, "total_env_steps": ROWS * STEPS * 6, "max_policy_lag": 0}
    config = run_config(name="run", directory=str(directory), **{**settings, **changes})
    source = EnvConfig("simple_tag_v3", "mpe", '{"max_cycles": 10}').source()
    spec = source.spec()
    agent = make_multi_policy_agent(spec, policies, lambda own: make_ppo(AGENT, own, NETWORK))
    plan = PLANS[config.plan](config, Resources.detect())
    return run(plan, agent, source, config, spec=spec, quiet=True)


def leaves(params):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(params)]


def same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(leaves(one), leaves(other), strict=True))


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_two_policies_with_workers_match_serial(tmp_path, workers):
    serial = train(tmp_path / "serial", plan="serial")
    fine = train(tmp_path / "fine", pool_num_workers=workers)
    assert sorted(serial.state.params) == ["hunters", "prey"]
    assert serial.num_updates == fine.num_updates == 6
    for a, b in zip(leaves(serial.state), leaves(fine.state), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_two_policies_resume_bit_for_bit(tmp_path):
    whole = train(tmp_path / "whole")
    for updates in (3, 6):
        parts = train(tmp_path / "parts", total_env_steps=ROWS * STEPS * updates)
    assert same(whole.state, parts.state)


def test_rows_that_split_an_environment_are_rejected(tmp_path):
    with pytest.raises(UserError, match="has 4 agents, each a row, but 18 rows .*: use --run.num-envs"):
        train(tmp_path, plan="serial", num_envs=18)


def experiment(directory, name, policies, **changes):
    settings = {
        "num_envs": ROWS,
        "rollout_length": STEPS,
        "total_env_steps": ROWS * STEPS * 3,
        "eval_final_episodes": 0,
    }
    return Experiment(
        env=EnvConfig("simple_tag_v3", "mpe", '{"max_cycles": 10}'),
        policies=policies,
        network=NETWORK,
        agent=AGENT,
        run=run_config(name=name, directory=str(directory), plan="serial", **{**settings, **changes}),
    )


@pytest.mark.slow
def test_frozen_policy_is_unchanged_and_self_contained(tmp_path, capsys):
    pytest.importorskip("mpe2")
    from jaxsrl.evaluation.load_agent import load_agent

    experiment(tmp_path, "first", TWO).train()
    frozen = PoliciesConfig(TWO.mapping, json.dumps({"prey": str(tmp_path / "first")}))
    experiment(tmp_path, "second", frozen, seed=5).train()
    first, second = load_agent(tmp_path / "first").params, load_agent(tmp_path / "second").params
    assert same(second["prey"], first["prey"])
    assert not same(second["hunters"], first["hunters"])
    (tmp_path / "first").rename(tmp_path / "elsewhere")
    capsys.readouterr()
    jaxsrl.cli.main.main(["evaluate", str(tmp_path / "second"), "--episodes", "3", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert report["episodes"] == 3
    assert sorted(report["agent_returns"]) == ["adversary_0", "adversary_1", "adversary_2", "agent_0"]


def skip_without_jaxmarl():
    if importlib.util.find_spec("jaxmarl") is None:  # importing it would replace sys.stdout
        pytest.skip("jaxmarl is not installed")


@pytest.mark.slow  # seconds to compile
@pytest.mark.parametrize("scenario", ["3m", "5m_vs_6m"])
def test_smax_matches_its_package(scenario):
    skip_without_jaxmarl()
    make_env(EnvConfig(scenario, "smax"))  # imports the package without what it prints
    from jaxmarl.environments.smax import HeuristicEnemySMAX, map_name_to_scenario

    steps = 60
    source = make_env(EnvConfig(scenario, "smax", '{"global_state": true, "max_steps": 25}'))
    spec = source.spec()
    names = [agent.name for agent in spec.agents]
    rows = source.make_rows(range(len(names)), 7, False)
    slot = allocate_slots(make_layout(spec, PoolShape(1, 1, 1, len(names), steps, 1), {}))[0]
    rows.reset(EpisodeReset((0,) * len(names), (None,) * len(names)), first_rows(slot))
    step_rows(slot, slice(0, steps)).prepare()
    rng = np.random.default_rng(0)
    for t in range(steps):
        slot.action[t] = [rng.choice(np.flatnonzero(mask)) for mask in slot.observation["action_mask"][t]]
        rows.step(slot.action[t], step_rows(slot, t))
    rows.close()

    theirs = HeuristicEnemySMAX(scenario=map_name_to_scenario(scenario), max_steps=25)
    episode, ended = -1, True
    for t in range(-1, steps):
        if ended:
            episode, ended = episode + 1, False
            seed = EpisodeSeeds(7, 0).seed(episode)
            key = jax.random.key(int(np.random.SeedSequence(seed).generate_state(1)[0]))
            key, own = jax.random.split(key)
            shown, state = theirs.reset(own)
            assert t < 0 or not slot.valid[t].any()
        else:
            key, own = jax.random.split(key)
            actions = {name: int(slot.action[t, k]) for k, name in enumerate(names)}
            shown, state, rewards, dones, _ = theirs.step_env(own, state, actions)
            ended = bool(dones["__all__"])
            alive = np.asarray(state.state.unit_alive)
            over = not alive[: len(names)].any() or not alive[len(names) :].any()
            np.testing.assert_allclose(slot.reward[t], [rewards[name] for name in names], rtol=1e-5)
            np.testing.assert_array_equal(slot.terminated[t], over)
            np.testing.assert_array_equal(slot.truncated[t], ended and not over)
        legal = theirs.get_avail_actions(state)
        for k, name in enumerate(names):
            np.testing.assert_allclose(slot.observation["observation"][t + 1, k], shown[name], rtol=1e-4, atol=1e-5)
            np.testing.assert_array_equal(slot.observation["action_mask"][t + 1, k], legal[name])
            np.testing.assert_allclose(slot.observation["state"][t + 1, k], shown["world_state"], rtol=1e-4, atol=1e-5)
    assert episode >= 2
    assert (slot.observation["action_mask"].sum(2) == 1).any()  # somebody fell


def test_smax_rejects_unknown_scenarios_and_options(capfd):
    skip_without_jaxmarl()
    streams = sys.stdout, sys.stderr, sys.__stdout__
    make_env(EnvConfig("3m", "smax"))
    assert (sys.stdout, sys.stderr, sys.__stdout__) == streams
    assert capfd.readouterr().out == ""
    with pytest.raises(UserError, match=r"unknown environment '2s3y' of suite 'smax': did you mean 2s3z"):
        make_env(EnvConfig("2s3y", "smax"))
    with pytest.raises(UserError, match="option observation must be one of 'units', 'sectors', got 'all'"):
        make_env(EnvConfig("3m", "smax", '{"observation": "all"}'))


@pytest.mark.parametrize(("suite", "env_id"), [("smax", "3m"), ("jax", "CartPole-v1")])
def test_jax_environments_reject_unsupported_settings(suite, env_id):
    with pytest.raises(UserError, match=f"frame_stack is not for suite '{suite}': expected 1, got 4"):
        make_env(EnvConfig(env_id, suite, frame_stack=4))
    with pytest.raises(UserError, match=f"stages is not for suite '{suite}'"):
        make_env(EnvConfig(env_id, suite, stages=(env_id,)))
    with pytest.raises(UserError, match=f"mask_from_info is not for suite '{suite}'"):
        make_env(EnvConfig(env_id, suite, mask_from_info=True))
