"""Runs that start with what another run has learned."""

import dataclasses

import jax
import numpy as np
import pytest

from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig
from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.errors import UserError
from jaxsrl.checkpoints.store import load_checkpoint
from jaxsrl.experiment import Experiment
from jaxsrl.models.store import ModelStore
from jaxsrl.training.warm_start import array_path
from tests.support.run_configs import change_run, run_config

STEPS = 4 * 8
SMALL = Experiment(
    EnvConfig("CartPole-v1"), PPOConfig(num_minibatches=1, num_epochs=1), NetworkConfig(hidden_sizes=(4,))
)


def train(directory, name, experiment=SMALL, updates=2, **changes):
    settings = {
        "num_envs": 4,
        "rollout_length": 8,
        "plan": "serial",
        "eval_final_episodes": 0,
        "metrics_tensorboard": False,
    }
    places = {"name": name, "directory": str(directory), "total_env_steps": updates * STEPS}
    return dataclasses.replace(experiment, run=run_config(**{**places, **settings, **changes})).train(quiet=True)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return train(tmp_path_factory.mktemp("source"), "first", checkpoint_keep_every=STEPS).directory


def start_of(directory, source, **changes):
    """Returns the arrays that a new run starts with, by path: a run whose learning rate is 0 keeps them."""
    frozen = dataclasses.replace(SMALL, agent=dataclasses.replace(SMALL.agent, learning_rate=1e-30))
    report = train(directory, "second", frozen, updates=1, seed=5, init_from=str(source), **changes)
    arrays, _ = load_checkpoint(report.directory / "checkpoints" / "1")
    return {array_path(name): value for name, value in arrays.items() if name.startswith("learner")}, report


def arrays_of(checkpoint):
    arrays, _ = load_checkpoint(checkpoint)
    return {array_path(name): value for name, value in arrays.items() if name.startswith("learner")}


def test_new_run_starts_with_the_parameters_of_another(tmp_path, source):
    started, report = start_of(tmp_path, source)
    expected = arrays_of(source / "checkpoints" / "2")
    names = [name for name in expected if name.startswith("params/")]
    assert len(names) >= 8
    for name in names:
        np.testing.assert_array_equal(started[name], expected[name])
    assert report.num_updates == 1
    assert int(started["opt_state/1/count"]) == 1, "the optimizer starts as new"
    log = (report.directory / "log.txt").read_text()
    assert f"starts with {len(names)} of {len(names)} arrays of {source}/checkpoints/2" in log


def test_models_by_tag_and_chosen_paths(tmp_path, source):
    assert set(ModelStore(source / "models").tags()) == {f"step-{STEPS}", f"step-{2 * STEPS}"}
    started, report = start_of(
        tmp_path, source.with_name(f"first@step-{STEPS}"), init_only=("actor/head/*",), init_optimizer=True
    )
    expected = arrays_of(source / "models" / "1")
    fresh = train(tmp_path, "fresh", updates=1, seed=5).directory
    own = jax.tree.leaves(arrays_of(fresh / "checkpoints" / "1"))
    assert len(own) == len(started)
    taken = {name for name in started if name.startswith("params/") and np.array_equal(started[name], expected[name])}
    assert taken == {name for name in started if name.startswith("params/actor/head/")}
    assert "starts with 6 of 6 arrays" in (report.directory / "log.txt").read_text()


def test_other_forms_are_reported_and_keep_their_start(tmp_path, source):
    wider = dataclasses.replace(SMALL, env=EnvConfig("Acrobot-v1"))
    report = train(tmp_path, "wider", wider, updates=1, init_from=str(source))
    log = (report.directory / "log.txt").read_text()
    assert "expected float32[6, 4], got float32[4, 4]" in log
    assert "starts with 4 of 8 arrays" in log


def test_resumed_runs_ignore_it(tmp_path, source):
    train(tmp_path, "second", updates=1)
    before = arrays_of(tmp_path / "second" / "checkpoints" / "1")
    train(tmp_path, "second", updates=2, init_from=str(source))
    assert "resumes" in (tmp_path / "second" / "log.txt").read_text()
    assert not all(
        np.array_equal(before[name], value) for name, value in arrays_of(source / "checkpoints" / "2").items()
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"init_from": "missing"}, "run.init_from: missing is no checkpoint and no run directory"),
        ({"init_only": ("nothing/*",)}, "nothing of .* fits this run:\n  no path matches nothing/"),
    ],
)
def test_bad_starts_are_rejected(tmp_path, source, changes, message):
    with pytest.raises(UserError, match=message):
        train(tmp_path, "second", **{"init_from": str(source), **changes})


def test_choices_need_a_run():
    with pytest.raises(UserError, match="use --run.init-from"):
        change_run(SMALL.run, init_optimizer=True)
