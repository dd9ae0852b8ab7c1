"""Random steps of a small dataset, and their comparison."""

import numpy as np

from agents.api import Trajectory
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec
from envpool_bridge.spec.tree import map_leaves
from jaxsrl.datasets.dataset import open_dataset
from jaxsrl.datasets.manifest import Manifest
from jaxsrl.datasets.writer import DatasetWriter, leaf_arrays

SPEC = EnvSpec("Test-v0", {"a b": ArraySpec((2,), "float32"), "c": DiscreteSpec(4, 1)}, DiscreteSpec(3, 2))
EXTRAS = {"log_prob": ArraySpec((), "float32")}
ROWS = 3


def random_steps(count, seed=0, num_rows=ROWS):
    """Returns [count, num_rows] steps with episodes that end, and the resets after them."""
    random = np.random.default_rng(seed)
    ends = random.random((count, num_rows)) < 0.2
    ends[1:] &= ~ends[:-1]  # an end is followed by a step that only resets
    valid = np.ones((count, num_rows), bool)
    valid[1:] = ~ends[:-1]
    is_first = np.zeros((count + 1, num_rows), bool)
    is_first[0] = True
    is_first[1:] = ~valid
    terminated = ends & (random.random((count, num_rows)) < 0.5)
    truncated = ends & (~terminated | (random.random((count, num_rows)) < 0.5))  # some are both
    observation = {"a b": random.normal(size=(count + 1, num_rows, 2)).astype(np.float32)}
    observation["c"] = random.integers(0, 4, (count + 1, num_rows)).astype(np.int32)
    return Trajectory(
        observation=observation,
        is_first=is_first,
        action=random.integers(0, 3, (count, num_rows)).astype(np.int32),
        reward=(random.normal(size=(count, num_rows)) * valid).astype(np.float32),
        terminated=terminated,
        truncated=truncated,
        valid=valid,
        policy_version=np.zeros((count, num_rows), np.int32),
        extras={"log_prob": random.normal(size=(count, num_rows)).astype(np.float32)},
    )


def part(steps, begin, end):
    def cut(array, observed=False):
        return array[begin : end + observed]

    return Trajectory(
        observation=map_leaves(lambda leaf: cut(leaf, True), steps.observation),
        is_first=cut(steps.is_first, True),
        action=cut(steps.action),
        extras={name: cut(extra) for name, extra in steps.extras.items()},
        **{
            name: cut(getattr(steps, name)) for name in ("reward", "terminated", "truncated", "valid", "policy_version")
        },
    )


def assert_equal(actual, expected):
    got, wanted = leaf_arrays(actual), leaf_arrays(expected)
    assert got.keys() == wanted.keys()
    for name, array in wanted.items():
        np.testing.assert_array_equal(got[name], array, err_msg=name)
        assert got[name].dtype == array.dtype


def write(path, steps, sizes, num_rows=ROWS, shard_bytes=500, **fields):
    with DatasetWriter(path, Manifest(SPEC, num_rows, EXTRAS, **fields), shard_bytes) as writer:
        begin = 0
        for size in sizes:
            writer.append(part(steps, begin, begin + size))
            begin += size
    return open_dataset(path)
