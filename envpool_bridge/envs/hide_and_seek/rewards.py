"""Rewards of hiders and seekers."""

import numpy as np

from envpool_bridge.envs.hide_and_seek.game import Game

OUTSIDE = -10.0


class Rewards:
    """Rewards of an episode.

    Args:
        game: Rules.
        num_hiders: Number of hiders, the first agents.
        num_agents: Number of agents.
    """

    def __init__(self, game: Game, num_hiders: int, num_agents: int) -> None:
        self._kind, self._penalizes_things = game.reward, game.penalizes_things
        self._num_hiders, self._num_agents = num_hiders, num_agents
        self._low, self._high = np.array(game.bounds).reshape(2, 2) * game.map_scale

    def compute(self, sees: np.ndarray, centers: np.ndarray) -> np.ndarray:
        """Returns the rewards of a step after the preparation phase, [A].

        Args:
            sees: [A, A] bool, whether an agent (row) sees another.
            centers: [A + M, 3] metres, of agents and things.
        """
        hiders = self._num_hiders
        seen = sees[hiders:, :hiders]
        rewards = np.empty(self._num_agents)
        rewards[:hiders] = np.where(seen.any(axis=0), -1.0, 1.0)
        rewards[hiders:] = np.where(seen.any(axis=1), 1.0, -1.0)
        teams = rewards[:hiders], rewards[hiders:]
        if self._kind == "joint_zero_sum":
            teams[0][:], teams[1][:] = teams[0].min(), teams[1].max()
        elif self._kind == "joint_mean":
            for team in teams:
                team[:] = team.mean()
        places = centers[:, :2]
        outside = ((places < self._low) | (places > self._high)).any(axis=1)
        rewards[outside[: self._num_agents]] = OUTSIDE
        if self._penalizes_things and outside[self._num_agents :].any():
            rewards[:] = OUTSIDE
        return rewards
