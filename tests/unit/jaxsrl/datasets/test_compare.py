"""Datasets whose values mean the same, though they come from a converted file and an environment, can be used together."""

import dataclasses

import numpy as np
import pytest

from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, EnvSpec
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


def write(path, spec, reward):
    size = spec.observation.stored_shape[0]
    steps = episode_steps(
        np.ones((4, size), np.float32), np.zeros((3, 2), np.float32), np.full(3, reward, np.float32), True
    )
    with make_dataset(path, Manifest(spec, 1)) as writer:
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
