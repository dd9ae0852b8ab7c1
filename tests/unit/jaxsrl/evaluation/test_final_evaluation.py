"""Evaluation after training: its rows, its stage, what it rejects before training, and its deadline."""

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from agents.api import Agent, OnPolicy
from envpool_bridge.envs.gymnasium_env import GymnasiumSource
from envpool_bridge.envs.probes.team import TEAM_PROBES, team_probe_source
from envpool_bridge.errors import UserError
from jaxsrl.evaluation.final_evaluation import evaluate_final
from jaxsrl.evaluation.while_training import evaluation_source, validate_evaluation
from tests.support.run_configs import run_config
from tests.support.staged_env import StagedEnv

AGENT = Agent(
    "zero",
    None,
    lambda num_rows: (),
    lambda params, observation, state, *_: (np.zeros(len(observation), np.int32), {}, state),
    None,
    {},
    OnPolicy(),
)


class Made(StagedEnv):
    """Pays its stage, and counts the environments that are open at once."""

    is_open, most = 0, 0

    def __init__(self):
        super().__init__(3)
        Made.is_open += 1
        Made.most = max(Made.most, Made.is_open)

    def step(self, action):
        observation, _, *ends = super().step(action)
        return observation, float(self.stage), *ends

    def close(self):
        Made.is_open -= 1


def evaluated(directory, source, **settings):
    config = run_config(num_envs=6, eval_final_episodes=12, **settings)
    (directory / "config.json").write_text("{}")
    done = SimpleNamespace(directory=directory, num_updates=3, seconds=1.0, state=SimpleNamespace(params={}))
    source = evaluation_source(config, source, None)
    validate_evaluation(config, source)
    return evaluate_final(done, AGENT, config, source, print)


@pytest.mark.parametrize(("max_rows", "most"), [(4, 4), (32, 6)])
def test_it_opens_no_more_environments_than_allowed(tmp_path, max_rows, most):
    Made.is_open = Made.most = 0
    report = evaluated(tmp_path, GymnasiumSource(Made), eval_max_rows=max_rows)
    assert (Made.most, Made.is_open, len(report.returns)) == (most, 0, 12)


@pytest.mark.parametrize(("stage", "played"), [(None, 1), (4, 4)])
def test_it_plays_the_stage_that_is_named(tmp_path, stage, played):
    report = evaluated(tmp_path, GymnasiumSource(Made, stage=1), eval_stage=stage)
    assert report.returns == (3.0 * played,) * 12


@pytest.mark.parametrize(
    ("settings", "stage", "message"),
    [
        ({"eval_stage": 2}, None, r"eval.stage 2 .* receive none: use --env.stage 0"),
        ({"eval_levels": 3}, 1, "eval.levels 3: the levels of .* are its stages: use --eval.stage"),
        ({"eval_seeds": (1, 2, 3, 4, 5)}, None, "expected a multiple of 5 episodes, got 12; use 10 or 15"),
        ({"eval_seeds": (1, -2)}, None, "must not be negative"),
        ({"eval_env_kwargs": {"length": 3}}, None, "environment of this run is a function"),
        ({"eval_agents": "b*"}, None, r"eval.agents 'b\*': expected a pattern of names"),
    ],
)
def test_what_the_environments_cannot_play_is_rejected(tmp_path, settings, stage, message):
    with pytest.raises(UserError, match=message):
        evaluated(tmp_path, GymnasiumSource(Made, stage=stage), **settings)
    assert not (tmp_path / "eval.json").exists()


def test_agents_that_match_are_accepted():
    source = team_probe_source(next(iter(TEAM_PROBES)), {}, True)
    validate_evaluation(run_config(eval_agents=source.spec().agents[0].name), source)


HANGS = """
import pathlib, sys, time
from tests.unit.jaxsrl.evaluation.test_final_evaluation import GymnasiumSource, Made, evaluated
class Hangs(Made):
    def step(self, action):
        time.sleep(600)
evaluated(pathlib.Path(sys.argv[1]), GymnasiumSource(Hangs), stall_timeout_seconds=1.0)
"""


def test_a_step_that_hangs_ends_it_at_the_deadline(tmp_path):
    ended = subprocess.run(
        [sys.executable, "-c", HANGS, str(tmp_path)], capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 1
    for said in (ended.stderr, (tmp_path / "log.txt").read_text()):
        assert "(--run.stall-timeout-seconds 1): it waits for its environments or its policy" in said
        assert "the same command plays again" in said
    assert not (tmp_path / "eval.json").exists()
