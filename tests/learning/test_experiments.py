"""The experiments as they are: CartPole to its goal on three seeds, MuJoCo and Atari for a while. Minutes; make test-all."""

import dataclasses
import json

import numpy as np
import pytest

import jaxsrl.cli.main
from experiments import ppo_atari, ppo_cartpole, ppo_mujoco
from tests.support.run_configs import change_run


def trained(module, directory, **changes):
    experiment = module.EXPERIMENT
    run = change_run(experiment.run, directory=str(directory), name="run", **changes)
    dataclasses.replace(experiment, run=run).train()
    return directory / "run"


def evaluated(capsys, run, episodes):
    capsys.readouterr()
    jaxsrl.cli.main.main(["evaluate", str(run), "--episodes", str(episodes), "--json"])
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_cartpole_is_solved(tmp_path, capsys, seed):
    run = trained(ppo_cartpole, tmp_path, seed=seed, eval_final_episodes=0)
    assert evaluated(capsys, run, 100)["mean_return"] >= 475.0


@pytest.mark.slow
@pytest.mark.parametrize("module", [ppo_mujoco, ppo_atari])
def test_twenty_thousand_steps_of_a_real_task_train_and_evaluate(tmp_path, capsys, module):
    run = trained(module, tmp_path, total_env_steps=20_000, eval_final_episodes=0)
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = [record[name] for record in records for name in record if name.startswith("loss/")]
    assert losses
    assert np.isfinite(losses).all()
    report = evaluated(capsys, run, 2)
    assert report["episodes"] == 2
    assert np.isfinite(report["mean_return"])


@pytest.mark.slow
def test_half_cheetah_learns_as_fast_as_cleanrl_documents(tmp_path, capsys):
    """CleanRL's ppo_continuous_action on HalfCheetah-v4: 1,443 +- 46 after 1 M steps, in training episodes."""
    run = trained(ppo_mujoco, tmp_path, eval_final_episodes=0)
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert records[-1]["env_steps"] >= 1_000_000
    assert records[-1]["episode/return_mean"] >= 1_400.0
    assert evaluated(capsys, run, 10)["mean_return"] >= 1_400.0
