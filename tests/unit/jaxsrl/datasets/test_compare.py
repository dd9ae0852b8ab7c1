"""Datasets whose values mean the same, though they come from a converted file and an environment, can be used together."""

import dataclasses

import jax
import numpy as np
import pytest

from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import AgentSpec, ArraySpec, DiscreteSpec, EnvSpec, MultiDiscreteSpec, describe_leaves
from jaxsrl.datasets.compare import same_values
from jaxsrl.datasets.dataset import find_episodes, open_dataset
from jaxsrl.datasets.episodes import episode_steps, merge
from jaxsrl.datasets.manifest import Manifest
from jaxsrl.datasets.writer import make_dataset
from jaxsrl.population.imitation import load_demonstrations

# As Hopper-v5 has them, and as a converted file has them.
OWN = EnvSpec(
    "Hop-v5", ArraySpec((3,), "float32", source_dtype="float64"), ArraySpec((2,), "float32", (-1.0, -1.0), (1.0, 1.0))
)
CONVERTED = EnvSpec("hop", ArraySpec((3,), "float32"), ArraySpec((2,), "float32", -1.0, 1.0))
OTHER_BOUNDS = dataclasses.replace(CONVERTED, action=ArraySpec((2,), "float32", -2.0, 1.0))
OTHER_SHAPE = dataclasses.replace(CONVERTED, observation=ArraySpec((4,), "float32"))


def write(path, spec, reward, env=None):
    size = spec.observation.stored_shape[0]
    steps = episode_steps(
        np.ones((4, size), np.float32), np.zeros((3, 2), np.float32), np.full(3, reward, np.float32), (True, False)
    )
    with make_dataset(path, Manifest(spec, 1, env=env)) as writer:
        writer.append(steps)
    return path


def test_a_converted_file_and_an_environment_merge(tmp_path):
    paths = [write(tmp_path / "own", OWN, 1.0), write(tmp_path / "converted", CONVERTED, 2.0)]
    merge(paths, tmp_path / "both")
    assert sorted(find_episodes(open_dataset(tmp_path / "both").steps).returns) == [3.0, 6.0]
    for number, spec in enumerate((OTHER_BOUNDS, OTHER_SHAPE)):
        with pytest.raises(UserError, match="has another observation or action than"):
            merge([paths[0], write(tmp_path / f"other{number}", spec, 1.0)], tmp_path / "none")


def test_a_converted_file_demonstrates_in_an_environment(tmp_path):
    steps = load_demonstrations(write(tmp_path / "converted", CONVERTED, 1.0), OWN)
    assert steps.observation.shape == (3, 3)
    for number, spec in enumerate((OTHER_BOUNDS, OTHER_SHAPE)):
        with pytest.raises(UserError, match="another observation or action than Hop-v5"):
            load_demonstrations(write(tmp_path / f"other{number}", spec, 1.0), OWN)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (DiscreteSpec(3), DiscreteSpec(3, 5)),
        (MultiDiscreteSpec((2,), (3, 4), (0, 0)), MultiDiscreteSpec((2,), (3, 4), (0, 1))),
    ],
)
def test_actions_that_begin_elsewhere_are_others(one, other):
    assert same_values({"a": one}, {"a": one})
    assert not same_values({"a": one}, {"a": other})
    assert describe_leaves("action", one) != describe_leaves("action", other)


def test_datasets_of_other_environments_are_not_merged(tmp_path):
    one = write(tmp_path / "one", OWN, 1.0, {"id": "HalfCheetah-v5"})
    two = write(tmp_path / "two", OWN, 1.0, {"id": "Walker2d-v5"})
    unknown = write(tmp_path / "unknown", CONVERTED, 1.0)
    with pytest.raises(
        UserError, match=r"one environment can be merged: .*one is of HalfCheetah-v5, .*two is of Walker2d-v5"
    ):
        merge([one, unknown, two], tmp_path / "none")
    assert merge([one, unknown], tmp_path / "both").num_valid_steps == 6


def write_two_agents(path):
    """Writes episodes of 3 steps, one row each of two agents."""
    agents = tuple(AgentSpec(name, CONVERTED.observation, CONVERTED.action) for name in "ab")
    one = episode_steps(
        np.ones((4, 3), np.float32), np.zeros((3, 2), np.float32), np.ones(3, np.float32), (True, False)
    )
    with make_dataset(path, Manifest(dataclasses.replace(CONVERTED, agents=agents), 2)) as writer:
        writer.append(jax.tree.map(lambda leaf: np.concatenate([leaf] * 2, axis=1), one))
    return path


def test_episodes_of_agents_stay_together(tmp_path):
    paths = [write_two_agents(tmp_path / name) for name in ("one", "two")]
    assert merge(paths, tmp_path / "whole").manifest.num_rows == 2
    with pytest.raises(
        UserError, match="the episodes of several agents belong together: .*one can be merged with best 1"
    ):
        merge(paths, tmp_path / "best", best=0.5)
