"""`jaxsrl plan`: what it shows of every policy, and what it refuses, without starting anything."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxsrl.cli.main
from envpool_bridge.supervisor import forkserver
from jaxsrl.collect.slot_layout import trajectory_shapes
from jaxsrl.datasets.manifest import Manifest
from jaxsrl.datasets.writer import DatasetWriter
from jaxsrl.experiment import load_experiment
from jaxsrl.machine.resources import Resources
from jaxsrl.plan.plan import plan_from_json
from jaxsrl.plan.policies import PLANS, REPLAY_PLANS
from jaxsrl.plan.validate import validate_plan

CARTPOLE = "experiments/ppo_cartpole.py"
REPLAYING = "experiments/dqn_cartpole.py"
OWN = """
import gymnasium
from agents.ppo import PPOConfig, make_ppo
from jaxsrl import Experiment

def make_agent(config, spec, network):
    return make_ppo(PPOConfig(discount=config["discount"]), spec, network)

EXPERIMENT = Experiment(
    env=lambda: gymnasium.make("CartPole-v1", max_episode_steps=50), agent={"discount": 0.9}, make_agent=make_agent
)
"""
FOUR = ("--gpus", "4", "--cores", "8", "--learner.num-devices", "2", "--pool.num-workers", "4")
ASYNCHRONOUS = ("--plan", "central", "--learner.gradients", "asynchronous", "--learner.num-replicas", "2")


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch):
    def no_process(self):
        raise AssertionError("a process was started")

    monkeypatch.setattr(forkserver.ForkServer, "__init__", no_process)


def shown(capsys, *arguments):
    jaxsrl.cli.main.main(["plan", *arguments])
    return capsys.readouterr().out


def refusal(capsys, *arguments):
    with pytest.raises(SystemExit) as stopped:
        jaxsrl.cli.main.main(["plan", *arguments])
    assert stopped.value.code == 2
    printed = capsys.readouterr().err
    assert printed.startswith("error: ")
    assert printed.count("\n") == 1
    return printed


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """Path of a dataset of four steps of CartPole."""
    agent, _, spec = load_experiment(Path(REPLAYING)).build()
    path = tmp_path_factory.mktemp("data") / "set"
    with DatasetWriter(path, Manifest(spec, 1, agent.extras)) as writer:
        shapes = trajectory_shapes(agent, spec, num_rows=1, rollout_length=4)
        writer.append(jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes))
    return str(path)


@pytest.mark.parametrize("policy", PLANS)
def test_every_policy_is_shown_and_its_json_is_its_plan(capsys, policy, dataset):
    suite = ("--env.suite", "jax") if policy == "device_only" else ()
    if policy in REPLAY_PLANS:
        offline = ("--dataset.path", dataset, "--agent.replay.priority-exponent", "0")
        collected = offline if policy == "offline" else ("--run.rollout-length", "32")
        suite = ("--run.num-envs", "128", *collected)
    experiment = REPLAYING if policy in REPLAY_PLANS else CARTPOLE
    data = json.loads(shown(capsys, experiment, "--plan", policy, "--json", *FOUR, *suite))
    plan = plan_from_json(data)
    validate_plan(plan, Resources(8, "gpu", 4))
    assert (plan.name, plan.num_rows) == (policy, 128)
    assert len(data["bytes"]["channels"]) == len(plan.channels)
    slots = f"{data['bytes']['slots']:,} bytes"
    assert plan.is_offline or data["bytes"]["slots"] > data["bytes"]["slot"] > 128 * 32
    table = shown(capsys, experiment, "--plan", policy, *FOUR, *suite)
    for channel in plan.channels:
        assert f"{channel.source} -> {channel.target}" in table
    for fragment in plan.fragments:
        assert fragment.kind.value in table
    assert (slots in table) != plan.is_offline


def test_flags_of_the_experiment_reach_the_plan(capsys):
    data = json.loads(shown(capsys, CARTPOLE, "--run.num-envs", "64", "--json", "--run.max-policy-lag=3"))
    plan = plan_from_json(data)
    assert (plan.name, plan.num_rows, plan.max_policy_lag) == ("single_learner_fine", 64, 3)


@pytest.mark.parametrize("name", ["a2c_cartpole", "reinforce_cartpole", "coma_coordination"])
def test_agents_without_a_ratio_have_policy_lag_0(capsys, name):
    file = f"experiments/{name}.py"
    assert plan_from_json(json.loads(shown(capsys, file, "--json"))).max_policy_lag == 0
    rejected = refusal(capsys, file, "--run.max-policy-lag", "1")
    assert "corrects a policy lag of at most 0, got 1: omit --run.max-policy-lag" in rejected


def test_a_policy_of_the_users_own_is_shown(capsys, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("from jaxsrl.plan.policies import serial as mine\n")
    assert "plan serial on" in shown(capsys, CARTPOLE, "--plan", f"{file}:mine")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((CARTPOLE, "--plan", "seriall"), "unknown plan 'seriall': did you mean serial?"),
        ((CARTPOLE, "--run.num-envs", "66"), "66 rows do not divide over 2 workers x 2 lanes: use --run.num-envs 64"),
        (
            (CARTPOLE, "--cores", "2", "--plan", "dedicated_environments"),
            "but there are 2: use --pool.num-workers 1",
        ),
        ((CARTPOLE, "--gpus", "2", "--learner.num-devices", "4"), "wants device 3, but there are 2 gpu devices"),
        ((CARTPOLE, "--gpus", "-1"), "--gpus must not be negative: got -1"),
        ((CARTPOLE, "--plan", "device_only"), "must be written in JAX"),
        ((CARTPOLE, "--agent.num-minibatches", "5"), "minibatches"),
        # Asynchronous replicas cut minibatches from their own rows.
        ((CARTPOLE, *ASYNCHRONOUS, "--network.core", "gru", "--agent.num-minibatches", "128"), "got 128 and 64"),
        (
            (CARTPOLE, "--run.gradient-steps", "5"),
            "run.gradient_steps is a budget for one policy that learns from replay",
        ),
        (
            (CARTPOLE, "--curriculum.returns", "5", "--eval.every", "1"),
            "curriculum.returns end stages, but the environments receive none",
        ),
        ((REPLAYING, "--plan", "offline"), "use --dataset.path DIRECTORY with it"),
        (
            (CARTPOLE, "--plan", "serial", "--pool.supervision.bad-env-output", "drop_episode"),
            "pool.supervision.bad_env_output drop_episode is for environments in workers",
        ),
        (
            (CARTPOLE, "--env.suite", "jax", "--plan", "device_only", "--inference.platform", "cpu"),
            "plan device_only: inference.platform cpu is for plans whose inference is a program of its own",
        ),
        ((CARTPOLE, "--calibrate", "--check"), "without --simulate: omit --calibrate, --check"),
        ((CARTPOLE, "--calibration", "c.json"), "without --simulate: omit --calibration c.json"),
        ((CARTPOLE, "--network", "100gbe"), "without --simulate: omit --network 100gbe"),
        ((CARTPOLE, "--simulate", "--out", "plan.svg"), "a simulation draws no plan: omit --out plan.svg"),
        (("nowhere.py",), "there is no file nowhere.py"),
        (
            ("jaxsrl/config/run_config.py",),
            "has no EXPERIMENT: expected EXPERIMENT = Experiment(...), as in the files of experiments/",
        ),
    ],
)
def test_plan_command_rejects_invalid_plan_in_one_line(capsys, arguments, message):
    assert message in refusal(capsys, *arguments)


def test_custom_agent_and_environment_are_planned(capsys, tmp_path):
    file = tmp_path / "own.py"
    file.write_text(OWN)
    plan = plan_from_json(json.loads(shown(capsys, str(file), "--json", "--run.num-envs", "64")))
    assert (plan.name, plan.num_rows) == ("single_learner_fine", 64)


def test_file_whose_experiment_is_no_value_is_rejected(capsys, tmp_path):
    file = tmp_path / "idle.py"
    file.write_text("EXPERIMENT = dict\n")
    assert "has no EXPERIMENT: expected EXPERIMENT = Experiment(...)" in refusal(capsys, str(file))


def test_plan_command_draws_next_to_tables(capsys, tmp_path):
    assert "plan single_learner_fine on" in shown(capsys, CARTPOLE, "--out", str(tmp_path / "plan.svg"))
    assert (tmp_path / "plan.svg").read_text().startswith("<svg")
    assert "a plan is drawn as .svg" in refusal(capsys, CARTPOLE, "--out", str(tmp_path / "plan.pdf"))


def test_plan_command_shows_policy_group_learners(capsys):
    pytest.importorskip("mpe2")
    table = shown(
        capsys,
        "experiments/mappo_mpe.py",
        *("--plan", "dedicated_environments", "--gpus", "4", "--cores", "8", "--learner.num-devices", "4"),
        *("--env.id", "simple_tag_v3", "--env.kwargs", "{}"),
        *("--policies.mapping.adversary_*", "hunters", "--policies.mapping.*", "prey"),
    )
    assert "learner hunters" in table
    assert "learner prey" in table
