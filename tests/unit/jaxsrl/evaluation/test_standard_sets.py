"""The sets of a run that was saved without training: which ones are written, kept and rejected."""

import dataclasses
import shutil
import sys

import gymnasium
import jax
import numpy as np
import pytest

from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig, make_ppo
from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.errors import UserError
from experiments.ppo_cartpole import EXPERIMENT
from jaxsrl.config.serialization import to_json
from jaxsrl.datasets.dataset import open_dataset
from jaxsrl.evaluation.record import RecordConfig, record
from jaxsrl.evaluation.standard_sets import SETS, TRAINING, SetsConfig, make_sets, mean_return
from jaxsrl.metrics.evaluations import Evaluation, append_evaluation
from jaxsrl.models.store import MODELS, ModelStore
from jaxsrl.training.run_state import state_to_arrays

MODULE = "module_of_test_standard_sets"
PLANTED = """
import gymnasium
gymnasium.register("Short-v0", entry_point="gymnasium.envs.classic_control:CartPoleEnv", max_episode_steps=5)
"""
ENV = EnvConfig(f"{MODULE}:Short-v0")
SIZES = SetsConfig(env_steps=40)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A directory with a run of two versions, and the dataset of its training."""
    out = tmp_path_factory.mktemp("sets")
    (out / f"{MODULE}.py").write_text(PLANTED)
    sys.path.insert(0, str(out))
    settings = dataclasses.replace(EXPERIMENT.run, num_envs=4, rollout_length=8)
    network = NetworkConfig(hidden_sizes=(4,))
    experiment = dataclasses.replace(EXPERIMENT, env=ENV, network=network, agent=PPOConfig(), run=settings)
    source = ENV.source()
    agent = make_ppo(experiment.agent, source.spec(), experiment.network)
    state, metadata = agent.init(jax.random.key(0)), {"agent_name": "ppo", "experiment": to_json(experiment)}
    for update in (1, 2):
        arrays = state_to_arrays(dataclasses.replace(state, num_updates=np.array(update, np.int32)))
        for name in ("checkpoints", MODELS):
            ModelStore(out / "run" / name).save(update, arrays, metadata)
    evaluate(out, 1, 100.0)
    record(agent, state.params, source, out / TRAINING, RecordConfig(env_steps=40, epsilon=1.0, max_rows=4))
    yield out
    sys.path.remove(str(out))


@pytest.fixture
def out(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "out")


def evaluate(out, update, mean):
    append_evaluation(out / "run", Evaluation(update, update, update, "greedy", mean, 0.0, mean, mean, 1.0, 10, 0, 0.0))


def write(out, sizes=SIZES, env=ENV, show=lambda line: None):
    return make_sets(out / "run", out, sizes, show, env)


@pytest.mark.slow
def test_sets_are_played_in_the_experiments_environment(out):
    with pytest.raises(UserError, match="trust_env=True"):
        write(out, env=None)
    lines = []
    rows = write(out, show=lines.append)
    assert any("medium and expert are one version, update 1" in line for line in lines)
    assert not any("evaluation may change" in line for line in lines)
    assert [row["set"] for row in rows] == list(SETS)
    assert open_dataset(out / "expert").manifest.env == to_json(ENV)


def make_shorter_env():
    return gymnasium.make("CartPole-v1", max_episode_steps=3)


@pytest.mark.slow
def test_levels_and_scores_compare_evaluated_returns(out):
    lines = []
    write(out, env=dataclasses.replace(ENV.source(), evaluation_env=make_shorter_env), show=lines.append)
    manifest = open_dataset(out / "random").manifest
    assert (manifest.score_random, manifest.score_expert) == (3.0, 100.0)
    assert mean_return(open_dataset(out / "random")) == 5.0
    assert any("evaluation may change episodes or rewards" in line for line in lines)


@pytest.mark.slow
def test_sets_of_other_options_are_rejected(out):
    first = write(out)
    assert write(out) == first
    for changes, difference in (
        ({"env_steps": 41}, "random was written with requested_env_steps 40 instead of 41"),
        ({"seed": 3}, "random was written with seed 0 instead of 3"),
        ({"stochastic": False}, "medium was written with mode sample instead of greedy"),
    ):
        with pytest.raises(UserError, match=f"{difference}: .*choose another --out, .*or delete"):
            write(out, dataclasses.replace(SIZES, **changes))
    evaluate(out, 2, 200.0)
    with pytest.raises(UserError, match="expert was written with run 1 instead of 2, update 1 instead of 2: "):
        write(out)
    shutil.rmtree(out / "expert")
    with pytest.raises(UserError, match="medium-expert was written with merged "):
        write(out)
    shutil.rmtree(out / "medium-expert")
    lines = []
    assert [row["set"] for row in write(out, show=lines.append)] == list(SETS)
    assert not any("one version" in line for line in lines)
