"""A MiniGrid task that is not solved from scratch within a budget is solved with stages within it."""

import dataclasses

import pytest

import jaxsrl
from experiments.ppo_minigrid_curriculum import EXPERIMENT
from tests.support.run_configs import change_run

pytestmark = pytest.mark.slow
BUDGET = 400_000


def evaluated(directory, **changes):
    """Returns the mean return of 100 greedy episodes of the last stage after the budget."""
    run = change_run(EXPERIMENT.run, directory=str(directory), total_env_steps=BUDGET, **changes.pop("run", {}))
    return dataclasses.replace(EXPERIMENT, run=run, **changes).train(quiet=True).evaluation.mean_return


def test_stages_solve_what_scratch_does_not(tmp_path):
    alone = jaxsrl.EnvConfig(EXPERIMENT.env.id, suite="minigrid")
    assert evaluated(tmp_path / "scratch", env=alone, run={"curriculum_returns": (), "eval_every": 0}) < 0.2
    assert evaluated(tmp_path / "stages") >= 0.8
