"""Rows of one policy's agents, copied out of a slot on the host for its learner's devices."""

import dataclasses
from functools import partial

import numpy as np

from envpool_bridge.shm.slots import SlotViews
from envpool_bridge.spec.tree import map_leaves


def take_agent_rows(slot: SlotViews, agent_indices: tuple[int, ...], rows_per_env: int) -> SlotViews:
    """Returns a copy of these agents' rows, environment by environment; the slot itself may be released.

    Args:
        slot: of whole environments, B = E * rows_per_env rows.
        agent_indices: of the agents among the rows of an environment.
        rows_per_env: agents of an environment.

    Returns:
        A slot of E * len(agent_indices) rows, without infos and times, which no learner uses.
    """
    own = partial(_take, agent_indices, rows_per_env)
    steps = len(slot.is_first)
    frames, is_first = map_leaves(own, slot.frames), own(slot.is_first_frames)
    return dataclasses.replace(
        slot,
        observation=map_leaves(lambda array: array[len(array) - steps :], frames),
        is_first=is_first[len(is_first) - steps :],
        action=map_leaves(own, slot.action),
        reward=own(slot.reward),
        terminated=own(slot.terminated),
        truncated=own(slot.truncated),
        valid=own(slot.valid),
        policy_version=own(slot.policy_version),
        extras={name: own(values) for name, values in slot.extras.items()},
        infos={},
        frames=frames,
        is_first_frames=is_first,
        agent_state=map_leaves(own, slot.agent_state),
    )


def _take(agent_indices: tuple[int, ...], rows_per_env: int, array: np.ndarray) -> np.ndarray:
    """Returns [N, E * len(agent_indices), ...] from [N, E * rows_per_env, ...], copied."""
    length, rest = array.shape[0], array.shape[2:]
    by_env = array.reshape((length, -1, rows_per_env, *rest))
    return by_env[:, :, list(agent_indices)].reshape((length, -1, *rest))
