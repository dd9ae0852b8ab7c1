"""What comes with each observation of a window."""

import dataclasses

import numpy as np

from agents.api import Trajectory
from agents.world_models.model import arrivals


def test_rewards_and_ends_belong_to_the_next_observation():
    """Two states: the first pays nothing, the step out of it pays 5 and ends the episode, and the next step only resets."""
    observation = np.array([0.0, 1.0, 0.0, 1.0, 0.0], np.float32)[:, None, None]

    def column(*values):
        return np.array(values)[:, None]

    steps = Trajectory(
        observation=observation,
        is_first=column(True, False, True, False, True),
        action=column(0, 0, 0, 0),
        reward=column(5.0, 99.0, 5.0, 99.0),
        terminated=column(True, True, False, False),
        truncated=column(False, False, True, False),
        valid=column(True, False, True, False),
        policy_version=column(0, 0, 0, 0),
        extras={},
    )
    arrived = arrivals(steps)
    assert arrived.observation[:, 0, 0].tolist() == [1.0, 0.0, 1.0, 0.0]
    assert arrived.reward[:, 0].tolist() == [5.0, 0.0, 5.0, 0.0]
    assert arrived.terminal[:, 0].tolist() == [True, False, False, False]
    assert arrived.last[:, 0].tolist() == [True, False, True, False]
    assert arrived.known[:, 0].tolist() == [1.0] * 4
    absent = dataclasses.replace(steps, is_first=np.zeros((5, 1), bool))
    assert arrivals(absent).known[:, 0].tolist() == [1.0, 0.0, 1.0, 0.0]


def test_an_episode_that_a_failure_cut_has_a_last_state():
    """A failure at the first step of a slot leaves no flag: the step only resets, and the one before goes on."""
    zeros, no = np.zeros((4, 1), np.float32), np.zeros((4, 1), bool)
    steps = Trajectory(
        observation=np.zeros((5, 1, 1), np.float32),
        is_first=np.array([True, False, False, True, False])[:, None],
        action=zeros,
        reward=zeros,
        terminated=no,
        truncated=no,
        valid=np.array([True, True, False, True])[:, None],
        policy_version=zeros,
        extras={},
    )
    assert arrivals(steps).last[:, 0].tolist() == [False, True, False, False]
    assert not arrivals(dataclasses.replace(steps, valid=~no)).last.any()
