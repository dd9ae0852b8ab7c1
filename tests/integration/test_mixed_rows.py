"""Runs whose rows differ on purpose: stages that change while they train, tasks with metrics, staggered first episodes."""

import json
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import jaxsrl
from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig, make_ppo
from envpool_bridge.envs.gymnasium_env import GymnasiumSource
from envpool_bridge.envs.mixed_rows import mixed_source
from envpool_bridge.envs.protocol import EnvSource
from envpool_bridge.errors import UserError
from jaxsrl.checkpoints.store import CheckpointStore, load_checkpoint
from tests.support.run_configs import run_config
from tests.support.staged_env import StagedEnv

ROWS, STEPS = 4, 8
SMALL = PPOConfig(num_minibatches=1, num_epochs=1)
STAGED = GymnasiumSource(partial(StagedEnv, 5), "Staged", stage=0, stagger=4)


class Curriculum(jaxsrl.Callback):
    """One stage an update; stops after some update."""

    def __init__(self, stop_at=0):
        self.stop_at = stop_at

    def on_start(self, run):
        run.set_stage(run.num_updates)

    def on_update(self, run):
        run.set_stage(run.num_updates)
        assert run.stage == run.num_updates
        if run.num_updates == self.stop_at:
            run.stop("far enough")


def train(directory, callbacks=(), source: EnvSource = STAGED, updates=7, **changes):
    settings = {"num_envs": ROWS, "rollout_length": STEPS, "pool_num_workers": 2, "eval_final_episodes": 0, "seed": 3}
    settings |= {"checkpoint_interval_updates": 0, "metrics_interval_seconds": 0.0, "max_policy_lag": 1}
    places = {"name": "run", "directory": str(directory), "total_env_steps": updates * ROWS * STEPS}
    agent = make_ppo(SMALL, source.spec(), NetworkConfig(hidden_sizes=(4,)))
    return jaxsrl.train(agent, source, run_config(**{**places, **settings, **changes}), quiet=True, callbacks=callbacks)


def saved(directory):
    checkpoints = directory / "run" / "checkpoints"
    return load_checkpoint(checkpoints / str(CheckpointStore(checkpoints).steps()[-1]))[0]


def assert_same(first, second, learner_tolerance=0.0):
    assert first.keys() == second.keys()
    for name, value in first.items():
        if learner_tolerance and name.startswith(("learner", "behind")):
            np.testing.assert_allclose(value, second[name], rtol=learner_tolerance, atol=1e-7, err_msg=name)
        else:
            np.testing.assert_array_equal(value, second[name], err_msg=name)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Arrays of the last checkpoint of a run that was not interrupted, on a pool of two workers."""
    directory = tmp_path_factory.mktemp("whole")
    train(directory, [Curriculum()])
    return saved(directory)


def test_a_change_applies_at_the_same_trajectory_in_every_plan(whole, tmp_path):
    # After update u the change to u applies from trajectory u + 3 on (counted from 0), as lag 1 has three slots.
    assert whole["stages"].tolist() == [4, 5, 6, 7]
    stages = whole["environments/observation"][:, 0]
    np.testing.assert_array_equal(stages, whole["environments/row_stages"])
    assert set(stages.tolist()) <= {2.0, 3.0}  # episodes of five steps started in trajectory 5 or 6
    train(tmp_path, [Curriculum()], plan="serial")
    # Inference on two rows and on four may differ in the last bit of a value; episodes may not.
    assert_same(saved(tmp_path), whole, learner_tolerance=1e-5)


@pytest.mark.parametrize("stop_at", [2, 5])
def test_a_resumed_run_repeats_the_stages(whole, tmp_path, stop_at):
    train(tmp_path, [Curriculum(stop_at)])
    train(tmp_path, [Curriculum()])
    assert_same(saved(tmp_path), whole)
    assert "could not be restored" not in (tmp_path / "run" / "log.txt").read_text()


def test_actors_apply_a_stage_too(tmp_path):
    train(tmp_path, [Curriculum()], plan="single_learner_coarse", updates=5)
    arrays = saved(tmp_path)
    np.testing.assert_array_equal(arrays["environments/observation"][:, 0], arrays["environments/row_stages"])
    assert arrays["stages"].tolist() == [2, 3, 4, 5]


def test_a_stage_is_rejected_where_there_is_none(tmp_path):
    with pytest.raises(UserError, match="receive no stage: start the run with --env.stage or --env.stages"):
        train(tmp_path, [Curriculum()], GymnasiumSource(StagedEnv, "Staged"), plan="serial")


def test_the_documented_callback_raises_the_stage(tmp_path):
    page = (Path(__file__).parents[2] / "docs/how_to/tasks_and_stages.md").read_text()
    names = {}
    exec(re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[0], names)
    train(tmp_path, [names["RaiseStage"](2.0)])
    assert saved(tmp_path)["stages"][-1] == 2  # whole episodes have a return of 5


def test_tasks_have_metrics_and_evaluations_of_their_own(tmp_path):
    each = {name: GymnasiumSource(partial(StagedEnv, 3, reward)) for name, reward in (("poor", 1.0), ("rich", 10.0))}
    report = train(tmp_path, source=mixed_source(each), eval_final_episodes=4, updates=3)
    assert report.metrics["episode/return/poor"] == 3.0
    assert report.metrics["episode/return/rich"] == 30.0
    assert report.evaluation is not None
    assert report.evaluation.task_returns == {"poor": 3.0, "rich": 30.0}
    assert json.loads((tmp_path / "run" / "eval.json").read_text())["task_returns"] == {"poor": 3.0, "rich": 30.0}
