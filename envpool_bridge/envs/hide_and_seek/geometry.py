"""Distances and directions for all pairs at once. All rotations are about the vertical axis."""

import numpy as np


def distance_to_cuboids(
    points: np.ndarray, centers: np.ndarray, turns: np.ndarray, half_sizes: np.ndarray
) -> np.ndarray:
    """Returns metres from points to the surfaces of cuboids, [A, M], 0 inside.

    Args:
        points: [A, 3].
        centers: [M, 3] of the cuboids.
        turns: [M] radians about z.
        half_sizes: [M, 3] along their own axes.
    """
    away = points[:, None] - centers
    cos, sin = np.cos(turns), np.sin(turns)
    own = np.empty_like(away)
    own[..., 0] = cos * away[..., 0] + sin * away[..., 1]
    own[..., 1] = cos * away[..., 1] - sin * away[..., 0]
    own[..., 2] = away[..., 2]
    beyond = np.maximum(np.abs(own) - half_sizes, 0.0)
    return np.sqrt(np.einsum("amk,amk->am", beyond, beyond))


def in_cone(away: np.ndarray, turns: np.ndarray, half_angle: float) -> np.ndarray:
    """Returns whether targets lie within `half_angle` of an agent's heading, seen from above, [A, K] bool.

    Args:
        away: [A, K, 2] metres along x and y from each agent to the targets; distance 0 counts as straight ahead.
        turns: [A] radians: at 0 an agent looks towards -y.
        half_angle: Half of the angle of the cone, radians.
    """
    ahead = np.sin(turns)[:, None] * away[..., 0] - np.cos(turns)[:, None] * away[..., 1]
    return ahead >= np.cos(half_angle) * np.sqrt(np.einsum("akc,akc->ak", away, away))
