"""Visibility and lidar of agents: one bundle of rays for each agent and step."""

import itertools
from typing import NamedTuple

import numpy as np

from envpool_bridge.envs.hide_and_seek.game import HALF_CONE, LIDAR_MISS
from envpool_bridge.envs.hide_and_seek.geometry import in_cone
from envpool_bridge.envs.hide_and_seek.mujoco import mujoco
from envpool_bridge.envs.hide_and_seek.scene import Scene


class Visibility(NamedTuple):
    """Visibility at one moment.

    Attributes:
        agents: [A, A] bool, whether an agent (row) sees another; it sees itself.
        things: [A, M] bool.
        lidar: [A, rays] metres to the first hit.
    """

    agents: np.ndarray
    things: np.ndarray
    lidar: np.ndarray


class Vision:
    """Rays of a scene's agents: an agent sees targets in its cone that are first on the ray to their middle.

    Args:
        scene: Scene of the agents.
        lidar_rays: Number of lidar rays of each agent, the first towards +x, the others evenly spaced.
    """

    def __init__(self, scene: Scene, lidar_rays: int) -> None:
        self._scene, self._num_lidar = scene, lidar_rays
        angles = 2 * np.pi * np.arange(lidar_rays) / lidar_rays
        total = lidar_rays + len(scene.bodies)
        self._rays = np.zeros((total, 3))  # of the present agent
        self._rays[:lidar_rays] = np.stack([np.cos(angles), np.sin(angles), np.zeros(lidar_rays)], axis=1)
        self._flat_rays = self._rays.reshape(-1)
        self._distance, self._geom = np.zeros(total), np.zeros(total, np.int32)
        # By geom id; the last entry, for the id -1 of a miss, is no body.
        self._body_of = np.append(scene.model.geom_bodyid, -1)

    def compute(self) -> Visibility:
        """Returns the present visibility; needs positions computed by `Scene.advance` or `mj_kinematics`."""
        scene, num_lidar = self._scene, self._num_lidar
        model, data, num_agents = scene.model, scene.data, scene.num_agents
        targets = data.geom_xpos[scene.geoms]
        eyes = targets[:num_agents]
        middles = data.xpos[scene.bodies]  # a ramp's geom is not centered
        away = middles[None, :, :2] - eyes[:, None, :2]
        maybe = in_cone(away, scene.position[:num_agents, 3], HALF_CONE)
        np.fill_diagonal(maybe, False)
        seers, candidates = maybe.nonzero()  # in order of agents
        directions = targets[candidates] - eyes[seers]
        first_hits = np.empty(len(seers), np.int32)
        lidar = np.empty((num_agents, num_lidar))
        ends = np.searchsorted(seers, np.arange(num_agents + 1)).tolist()
        for agent, (start, end) in enumerate(itertools.pairwise(ends)):
            count = num_lidar + end - start
            self._rays[num_lidar:count] = directions[start:end]
            body, geom, distance = scene.bodies[agent], self._geom[:count], self._distance[:count]
            mujoco.mj_multiRay(
                model,
                data,
                eyes[agent],
                self._flat_rays[: 3 * count],
                None,
                True,
                body,
                geom,
                distance,
                None,
                count,
                1e10,
            )
            lidar[agent] = distance[:num_lidar]
            first_hits[start:end] = geom[num_lidar:]
        seen = np.zeros(maybe.shape, bool)
        seen[seers, candidates] = self._body_of[first_hits] == scene.bodies[candidates]
        lidar[lidar < 0] = LIDAR_MISS
        np.fill_diagonal(seen, True)
        return Visibility(seen[:, :num_agents], seen[:, num_agents:], lidar)
