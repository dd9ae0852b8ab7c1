"""Curricula: stages follow evaluations in the same way in every run, also in one that was killed and resumed."""

import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxsrl
from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig
from envpool_bridge.errors import UserError
from jaxsrl.metrics.evaluations import read_evaluations
from jaxsrl.models.store import ModelStore
from tests.support.metric_records import read_records
from tests.support.run_configs import run_config

# Every policy balances for 4 steps, and none for more than the limit: the first two stages end at once.
LADDER = tuple(f'{{"max_episode_steps": {steps}}}' for steps in (3, 4, 20))
ROOT = Path(__file__).parents[2]


def experiment(directory, stages=LADDER, **changes):
    options = {"name": "run", "directory": str(directory), "num_envs": 4, "rollout_length": 8, "max_policy_lag": 1}
    options |= {"total_env_steps": 10 * 32, "pool_num_workers": 2, "checkpoint_interval_updates": 3, "seed": 5}
    options |= {"eval_every": 64, "eval_episodes": 4, "eval_final_episodes": 3, "curriculum_returns": (3.0, 4.0)}
    options |= {"metrics_interval_seconds": 0.0}
    return jaxsrl.Experiment(
        env=jaxsrl.EnvConfig("CartPole-v1", stages=stages),
        network=NetworkConfig(hidden_sizes=(4,)),
        agent=PPOConfig(num_minibatches=1, num_epochs=1),
        run=run_config(**{**options, **changes}),
    )


class KillsItself(jaxsrl.Callback):
    """Kills the process after an update."""

    def __init__(self, update):
        self.update = update

    def on_update(self, run):
        if run.num_updates == self.update:
            os.kill(os.getpid(), signal.SIGKILL)


def train_and_be_killed(directory, update):
    """Runs `experiment(directory)` in a process that kills itself."""
    code = (
        "import sys; from pathlib import Path; from tests.integration.test_curriculum import *\n"
        "experiment(sys.argv[1]).train(quiet=True, callbacks=[KillsItself(int(sys.argv[2]))])"
    )
    command = [sys.executable, "-c", code, str(directory), str(update)]
    killed = subprocess.run(command, cwd=ROOT, timeout=300, check=False)
    assert killed.returncode == -signal.SIGKILL


def results(report):
    """Returns the learned state, and the evaluations without their wall-clock time."""
    done = [dataclasses.replace(each, seconds=0.0) for each in read_evaluations(report.directory)]
    return jax.tree.leaves(report.state), sorted(done, key=lambda each: each.update)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Report of an uninterrupted run."""
    return experiment(tmp_path_factory.mktemp("whole")).train(quiet=True)


def test_evaluations_end_stages(whole):
    evaluations = read_evaluations(whole.directory)
    assert [(each.update, each.stage) for each in evaluations] == [(2, 0), (4, 1), (6, 2), (8, 2), (10, 2)]
    assert [each.mean_return for each in evaluations[:2]] == [3.0, 4.0]
    assert whole.evaluation.mean_return > 4.0, "the last stage is evaluated after training"
    log = (whole.directory / "log.txt").read_text()
    assert "stage 1 from 128 env steps on" in log
    assert "stage 2 from 192 env steps on" in log
    records = [record.values for record in read_records(whole.directory / "metrics.jsonl")]
    lengths = [values["episode/length_mean"] for values in records if "episode/length_mean" in values]
    assert lengths[0] == 3.0
    assert lengths[-1] > 3.0
    loaded = jaxsrl.load_agent(whole.directory)
    assert loaded.source.spec().stage == 2
    assert ModelStore(whole.directory / "models").find("best").version >= 6, "an earlier stage is not better"


@pytest.mark.parametrize("update", [4, 5, 7])
def test_killed_run_repeats_every_stage(tmp_path, whole, update):
    train_and_be_killed(tmp_path, update)
    resumed = experiment(tmp_path).train(quiet=True)
    state, evaluations = results(resumed)
    expected_state, expected = results(whole)
    assert evaluations == expected
    for mine, theirs in zip(state, expected_state, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_other_plans_give_the_same_stages(tmp_path, whole):
    serial = experiment(tmp_path, plan="serial").train(quiet=True)
    assert results(serial)[1] == results(whole)[1]


def test_target_return_waits_for_the_last_stage(tmp_path):
    report = experiment(tmp_path, plan="serial", target_return=3.0).train(quiet=True)
    assert report.num_updates == 8
    assert "reaches the target" in report.stop_reason


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"eval_every": 0}, "--eval.every"),
        ({"curriculum_returns": (1.0, 1.0, 1.0)}, "3 returns, so stage 3 is the last one.*has stages 0 to 2"),
        ({"stages": ()}, "--env.stage 0"),
    ],
    ids=["no evaluations", "no such stage", "no stages"],
)
def test_what_cannot_run_is_rejected_before_it_starts(tmp_path, changes, message):
    with pytest.raises(UserError, match=message):
        experiment(tmp_path, **changes).train(quiet=True)
    assert not list(tmp_path.iterdir())


def test_environments_on_devices_have_no_curriculum(tmp_path):
    on_device = dataclasses.replace(
        experiment(tmp_path, plan="device_only"), env=jaxsrl.EnvConfig("CartPole-v1", suite="jax")
    )
    with pytest.raises(UserError, match="use --plan single_learner_fine"):
        on_device.train(quiet=True)
