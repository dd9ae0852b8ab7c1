"""A checkpoint of another network: refused with every difference, or taken in part where that is asked for."""

import dataclasses

import jax
import numpy as np
import pytest

from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig, make_ppo
from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.errors import UserError
from jaxsrl.checkpoints.partial_restore import format_report, restore_matching
from jaxsrl.checkpoints.store import CheckpointStore
from jaxsrl.config.run_config import RunConfig
from jaxsrl.envs.registry import make_env
from jaxsrl.machine.resources import Resources
from jaxsrl.plan.policies import PLANS
from jaxsrl.run_plan import run
from tests.support.run_configs import run_config

SOURCE = make_env(EnvConfig("CartPole-v1"))
SPEC = SOURCE.spec()


@dataclasses.dataclass(frozen=True)
class Experiment:
    run: RunConfig
    network: NetworkConfig


def train(directory, hidden_sizes, updates, partial=False):
    config = run_config(
        name="run",
        directory=str(directory),
        plan="serial",
        num_envs=2,
        rollout_length=4,
        total_env_steps=2 * 4 * updates,
        max_policy_lag=0,
        checkpoint_interval_updates=0,
        checkpoint_partial_restore=partial,
    )
    network = NetworkConfig(hidden_sizes=hidden_sizes)
    agent = make_ppo(PPOConfig(num_epochs=1, num_minibatches=1), SPEC, network)
    plan = PLANS["serial"](config, Resources.detect())
    return run(plan, agent, SOURCE, config, experiment=Experiment(config, network), spec=SPEC, quiet=True)


def test_partial_restore_takes_matching_parameters():
    fresh = {"learner.a": np.zeros(2), "learner.b": np.zeros((2, 3), np.float32), "learner.c": np.zeros(1)}
    saved = {
        "learner.a": np.ones(2),
        "learner.b": np.ones((3, 2), np.float32),
        "learner.d": np.ones(1),
        "rows.x": np.ones(1),
    }
    arrays, left_out = restore_matching(saved, fresh, "learner")
    assert list(arrays) == list(fresh)
    assert [float(array.sum()) for array in arrays.values()] == [2.0, 0.0, 0.0]
    assert left_out == [
        "learner.b: expected float32[2, 3], is float32[3, 2] in the checkpoint: starts as new",
        "learner.c: expected float64[1], is missing in the checkpoint: starts as new",
        "learner.d: float64[1] in the checkpoint, not expected: skipped",
    ]
    assert format_report(arrays, left_out).startswith(
        "partial restore: 1 of 3 arrays fit the checkpoint's:\n  learner.b"
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_changed_network_needs_partial_restore(tmp_path):
    # The second layer grows: the first fits, and what follows it begins as new.
    train(tmp_path, (8, 8), 2)
    with pytest.raises(UserError, match=r"network\.hidden_sizes"):
        train(tmp_path, (8, 6), 4)
    report = train(tmp_path, (8, 6), 4, partial=True)
    assert report.num_updates == 4
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "partial restore: " in log
    assert "expected float32[8, 6], is float32[8, 8] in the checkpoint: starts as new" in log
    # From now on it is a run like any other.
    assert train(tmp_path, (8, 6), 5).num_updates == 5


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_partial_changes_nothing_where_all_fits(tmp_path):
    whole = train(tmp_path / "whole", (8,), 4)
    train(tmp_path / "cut", (8,), 2)
    cut = train(tmp_path / "cut", (8,), 4, partial=True)
    for one, other in zip(jax.tree.leaves(whole.state), jax.tree.leaves(cut.state), strict=True):
        np.testing.assert_array_equal(one, other)
    assert CheckpointStore(tmp_path / "cut" / "run" / "checkpoints").steps() == [2, 4]
