"""Prioritized level replay: environments start the levels that the agent chose, in every plan and after a resume."""

from functools import partial

import jax
import numpy as np
import pytest

import jaxsrl
from agents.dqn import DQNConfig
from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig
from envpool_bridge.envs.gymnasium_env import GymnasiumSource
from envpool_bridge.errors import UserError
from envpool_bridge.options import SupervisorOptions
from jaxsrl.datasets.dataset import open_dataset
from jaxsrl.envs.cpu_rows import JaxSource
from jaxsrl.envs.levels import LevelsJaxEnv
from tests.support.level_env import HARD, LevelEnv
from tests.support.level_jax_env import LevelJaxEnv
from tests.support.run_configs import run_config

ROWS, STEPS, LEVELS = 4, 8, 6
GYMNASIUM = GymnasiumSource(LevelEnv, "level_env", levels=LEVELS)
JAX = JaxSource(partial(LevelsJaxEnv, LevelJaxEnv(), LEVELS))


def experiment(directory, updates=6, env=GYMNASIUM, agent=None, **changes):
    settings = {"num_envs": ROWS, "rollout_length": STEPS, "max_policy_lag": 1, "eval_final_episodes": 0, "seed": 3}
    settings |= {"total_env_steps": ROWS * STEPS * updates, "checkpoint_interval_updates": 1, "plan": "serial"}
    return jaxsrl.Experiment(
        env=env,
        agent=agent or PPOConfig(num_epochs=1, num_minibatches=1, learning_rate=1e-8),
        network=NetworkConfig(hidden_sizes=(4,)),
        run=run_config(name="run", directory=str(directory), **{**settings, **changes}),
    )


def recorded(directory, updates=6, **changes):
    """Trains and records; returns the report and all steps."""
    report = experiment(directory, updates, record=str(directory / "steps"), **changes).train(quiet=True)
    return report, open_dataset(directory / "steps").steps


@pytest.fixture(scope="module")
def serial(tmp_path_factory):
    """Report and steps of the reference."""
    return recorded(tmp_path_factory.mktemp("serial"))


def state_of(report):
    return jax.tree.leaves(jax.device_get(report.state))


def test_environments_start_the_chosen_levels(serial):
    report, steps = serial
    observed, level = steps.observation[..., 0], steps.extras["level"]
    valid = np.asarray(steps.valid)
    assert np.array_equal(observed[: len(valid)][valid], level[valid])
    assert np.array_equal(level[0], np.arange(ROWS) % LEVELS)
    scores = report.state.extra["scores"]
    ends = (np.asarray(steps.terminated) & valid).sum()
    assert int(scores.episodes) == ends
    assert set(level[valid].tolist()) == set(range(LEVELS))


@pytest.mark.parametrize(
    "changes",
    [
        {"plan": "single_learner_fine", "pool_num_workers": 2},
        pytest.param({"plan": "single_learner_coarse", "pool_num_workers": 2}, marks=pytest.mark.slow),
        pytest.param(
            {"plan": "decoupled", "pool_num_workers": 2, "inference_num_devices": 2, "inference_num_servers": 2},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"plan": "multiple_learners", "learner_num_devices": 2, "pool_num_workers": 2}, marks=pytest.mark.slow
        ),
        pytest.param({"plan": "dedicated_environments", "pool_num_workers": 1}, marks=pytest.mark.slow),
    ],
    ids=lambda changes: changes["plan"],
)
def test_levels_are_the_same_in_every_plan(tmp_path, serial, changes):
    _, steps = recorded(tmp_path, **changes)
    for name in ("level", "next_level"):
        assert np.array_equal(steps.extras[name], serial[1].extras[name])
    assert np.array_equal(steps.observation, serial[1].observation)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"plan": "single_learner_fine", "pool_num_workers": 2},
        pytest.param({"env": JAX, "plan": "device_only"}, marks=pytest.mark.slow),
        pytest.param({"env": JAX}, marks=pytest.mark.slow),
    ],
    ids=["serial", "single_learner_fine", "device_only", "JAX rows in serial"],
)
def test_a_resumed_run_is_exact(tmp_path, serial, changes):
    whole = experiment(tmp_path / "whole", **changes).train(quiet=True) if changes else serial[0]
    for updates in (2, 3, 6):
        parts = experiment(tmp_path / "parts", updates, **changes).train(quiet=True)
    assert all(np.array_equal(a, b) for a, b in zip(state_of(whole), state_of(parts), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(("failure", "says"), [("raises", "its episode is dropped"), ("dies", "died")])
def test_a_replaced_environment_starts_the_chosen_level(tmp_path, caplog, failure, says):
    failing = GymnasiumSource(partial(LevelEnv, failure), "level_env", levels=LEVELS)
    supervision = SupervisorOptions(max_restarts=1000, bad_env_output="drop_episode", max_backoff_seconds=0.0)
    changes = {"plan": "single_learner_fine", "pool_num_workers": 2, "pool_supervision": supervision}
    _, steps = recorded(tmp_path, env=failing, **changes)
    valid = np.asarray(steps.valid)
    assert np.array_equal(steps.observation[: len(valid), :, 0][valid], steps.extras["level"][valid])
    assert says in caplog.text


@pytest.mark.slow
def test_jax_environments_start_the_chosen_levels(tmp_path):
    served, steps = recorded(tmp_path, env=JAX, max_policy_lag=0)
    on_device = experiment(tmp_path / "device", env=JAX, plan="device_only", max_policy_lag=0).train(quiet=True)
    for mine, theirs in zip(state_of(served), state_of(on_device), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-6)
    first, level = np.asarray(steps.is_first)[:STEPS], np.asarray(steps.extras["level"])[:STEPS]
    starts = {(int(n), float(x)) for n, x in zip(level[first], steps.observation[:STEPS][first][:, 0], strict=True)}
    assert len(starts) == len({number for number, _ in starts}), "one start for each level"


def test_a_level_with_lasting_error_is_played_more(tmp_path):
    _, steps = recorded(tmp_path, updates=20)
    counts = np.bincount(steps.extras["level"][80:][np.asarray(steps.is_first)[80:160]], minlength=LEVELS)
    assert counts[HARD] > 0.5 * counts.sum()


def test_loaded_agent_acts_without_levels(tmp_path, serial):
    loaded = jaxsrl.load_agent(serial[0].directory, env=GYMNASIUM)
    assert "level" not in loaded.agent.extras
    learner = jax.device_get(serial[0].state.params["learner"])
    assert all(
        np.array_equal(a, b) for a, b in zip(jax.tree.leaves(learner), jax.tree.leaves(loaded.params), strict=True)
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"agent": DQNConfig()}, "scored by the advantages"),
        ({"plan": "central"}, "central"),
        ({"plan": "single_learner_fine", "cluster_address": "local"}, "use no --cluster"),
        ({"curriculum_returns": (1.0,), "eval_every": 64}, "either --env.levels"),
    ],
    ids=["no advantages", "central", "other machines", "curriculum"],
)
def test_what_cannot_run_is_rejected_before_it_starts(tmp_path, changes, message):
    with pytest.raises(UserError, match=message):
        experiment(tmp_path, **changes).train(quiet=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"id": "CartPole-v1", "levels": -1}, "at least 0"),
        ({"stages": ("CartPole-v0", "CartPole-v1"), "levels": 3}, "the number of stages"),
        ({"id": "CartPole-v0,CartPole-v1", "levels": 3}, "one task"),
        ({"id": "CartPole-v1", "suite": "gymnasium_vector", "levels": 3}, "levels is not for"),
    ],
)
def test_levels_that_do_not_fit_are_rejected(config, message):
    with pytest.raises(UserError, match=message):
        jaxsrl.EnvConfig(**config).source()
