"""Statistics of an episode that distinguish the phases of learning."""

import numpy as np

from envpool_bridge.envs.hide_and_seek.scene import Scene


class EpisodeStats:
    """Statistics along an episode; `as_dict` at its end.

    The names are SRL's; names that end in "_prep" refer to the end of the preparation phase. In addition,
    `seen_fraction` is the fraction of rewarded steps in which a seeker saw a hider.

    Args:
        scene: at the start of an episode.
    """

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._start = scene.position[scene.num_agents :, :3].copy()
        self._returns = np.zeros(scene.num_agents)
        self._steps = self._seen_steps = 0
        self._prep: dict[str, float] = {}

    def add(self, rewards: np.ndarray, seen: bool, rewarded: bool) -> None:
        """Adds one step: [A] rewards, whether a seeker sees a hider, whether the preparation phase is over."""
        self._returns += rewards
        self._steps += rewarded
        self._seen_steps += rewarded and seen

    def end_preparation(self, locked: np.ndarray) -> None:
        """Records the changes during the preparation phase; once."""
        self._prep = {f"{name}_prep": value for name, value in self._changes(locked).items()}

    @property
    def preparation_ended(self) -> bool:
        """True after `end_preparation`."""
        return bool(self._prep)

    def as_dict(self, locked: np.ndarray) -> dict[str, float]:
        """Returns the statistics; `locked` [M] bool are the present locks."""
        if not self._prep:
            self.end_preparation(locked)  # an episode that ended in the preparation phase
        return {
            **self._prep,
            **self._changes(locked),
            "hider_return": float(self._returns[0]),
            "seeker_return": float(self._returns[-1]),
            "seen_fraction": self._seen_steps / max(1, self._steps),
        }

    def _changes(self, locked: np.ndarray) -> dict[str, float]:
        scene = self._scene
        moved = np.linalg.norm(scene.position[scene.num_agents :, :3] - self._start, axis=1)
        boxes, ramps = slice(scene.num_boxes), slice(scene.num_boxes, None)
        return {
            "max_box_move": float(moved[boxes].max(initial=0.0)),
            "num_box_lock": float(locked[boxes].sum()),
            "max_ramp_move": float(moved[ramps].max(initial=0.0)),
            "num_ramp_lock": float(locked[ramps].sum()),
        }
