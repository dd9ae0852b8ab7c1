"""Samples over several devices: shared by rows where they can be, whole on each where they cannot."""

import jax
import numpy as np
import pytest

from agents.api import Sample, Trajectory
from jaxsrl.learner.mesh import LearnerMesh


def sample_of(rows):
    flags = np.zeros((2, rows), bool)
    steps = Trajectory(
        observation=np.zeros((3, rows, 5), np.float32),
        is_first=np.zeros((3, rows), bool),
        action=np.zeros((2, rows), np.int32),
        reward=np.zeros((2, rows), np.float32),
        terminated=flags,
        truncated=flags,
        valid=flags,
        policy_version=np.zeros((2, rows), np.int32),
        extras={},
        agent_state={"core": np.zeros((rows, 3), np.float32)},
    )
    return Sample(steps, np.ones(rows, np.float32), np.int32(9))


@pytest.mark.parametrize(("rows", "share"), [(8, 2), (6, 6)])
def test_a_device_has_its_share_of_the_rows_or_all_of_them(rows, share):
    mesh = LearnerMesh(jax.local_devices()[:4])
    sample = sample_of(rows)
    placed = jax.device_put(sample, mesh.sample_shardings(sample))
    assert placed.trajectory.observation.addressable_shards[0].data.shape == (3, share, 5)
    assert placed.trajectory.agent_state["core"].addressable_shards[0].data.shape == (share, 3)
    assert placed.probability.addressable_shards[0].data.shape == (rows,)
