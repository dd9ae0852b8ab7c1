"""Every multi-agent suite trains for 20,000 env steps, is saved and evaluated. Minutes; make test-all."""

import dataclasses
import importlib.util
import json

import jax
import numpy as np
import pytest

import jaxsrl.cli.main
from experiments import mappo_mpe
from jaxsrl.evaluation.load_agent import load_agent
from jaxsrl.population.policies import PoliciesConfig
from tests.support.run_configs import change_run

SUITES = {
    "spread": ("mpe2", "mpe", "simple_spread_v3", {"global_state": True, "team_reward": "mean"}, {}),
    "tag": ("mpe2", "pettingzoo", "mpe2/simple_tag_v3", {}, {"adversary_*": "hunters", "*": "prey"}),
    "speaker": ("mpe2", "mpe", "simple_speaker_listener_v4", {}, {"speaker_*": "speaker", "*": "listener"}),
    "connect_four": ("pygame", "pettingzoo", "pettingzoo/classic/connect_four_v3", {}, {}),
    "hanabi": ("pyspiel", "hanabi", "Hanabi-Full", {"global_state": True}, {}),
    "overcooked": ("overcooked", "overcooked", "cramped_room", {"shaped_reward": 1.0, "global_state": True}, {}),
    "smax": ("jaxmarl", "smax", "3m", {"global_state": True}, {}),
}


def trained(directory, suite, env_id, kwargs, policies, name="run", **changes):
    experiment = mappo_mpe.EXPERIMENT
    run = change_run(
        experiment.run, directory=str(directory), name=name, total_env_steps=20_000, eval_final_episodes=0, **changes
    )
    env = dataclasses.replace(experiment.env, id=env_id, suite=suite, kwargs=json.dumps(kwargs))
    dataclasses.replace(experiment, env=env, policies=policies, run=run).train()
    return directory / name


def evaluated(capsys, run):
    capsys.readouterr()
    jaxsrl.cli.main.main(["evaluate", str(run), "--episodes", "4", "--json"])
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
@pytest.mark.parametrize("name", SUITES)
def test_twenty_thousand_steps_of_a_suite_train_and_evaluate(tmp_path, capsys, name):
    package, suite, env_id, kwargs, mapping = SUITES[name]
    if importlib.util.find_spec(package) is None:  # importing jaxmarl here would replace sys.stdout
        pytest.skip(f"{package} is not installed")
    run = trained(tmp_path, suite, env_id, kwargs, PoliciesConfig(json.dumps(mapping)))
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = [record[key] for record in records for key in record if "loss/" in key]
    assert losses
    assert np.isfinite(losses).all()
    loaded = load_agent(run)
    names = [agent.name for agent in loaded.source.spec().agents]
    report = evaluated(capsys, run)
    assert report["episodes"] == 4
    assert sorted(report["agent_returns"]) == sorted(names)
    assert np.isfinite([*report["agent_returns"].values(), report["mean_return"]]).all()


@pytest.mark.slow
def test_of_two_policies_the_frozen_one_keeps_every_bit(tmp_path, capsys):
    pytest.importorskip("mpe2")
    two = '{"adversary_*": "hunters", "*": "prey"}'
    task = ("mpe", "simple_tag_v3", {})
    first = trained(tmp_path, *task, PoliciesConfig(two), name="first")
    frozen = PoliciesConfig(two, json.dumps({"prey": str(first)}))
    second = trained(tmp_path, *task, frozen, name="second", seed=1)
    before, after = load_agent(first).params, load_agent(second).params
    bits = [
        np.array_equal(a, b)
        for a, b in zip(jax.tree.leaves(before["prey"]), jax.tree.leaves(after["prey"]), strict=True)
    ]
    changed = [
        np.array_equal(a, b)
        for a, b in zip(jax.tree.leaves(before["hunters"]), jax.tree.leaves(after["hunters"]), strict=True)
    ]
    assert all(bits)
    assert not any(changed)
    assert evaluated(capsys, second)["agent_returns"].keys() >= {"adversary_0", "agent_0"}
