"""Statistics of an episode that distinguish the phases of learning."""

import numpy as np

from envpool_bridge.envs.hide_and_seek.game import SIGNAL_NAMES, Game
from envpool_bridge.envs.hide_and_seek.layout import Layout
from envpool_bridge.envs.hide_and_seek.phases import (
    CHASED,
    FEET,
    POSE_COLUMNS,
    POSE_COS,
    POSE_HALF_X,
    POSE_HALF_Y,
    POSE_SIN,
    POSE_X,
    POSE_Y,
    count_step,
    end_preparation,
    make_ground,
    rows_of_doors,
    rows_of_walls,
)
from envpool_bridge.envs.hide_and_seek.scene import Scene


class EpisodeStats:
    """Statistics along an episode; `as_dict` at its end.

    The names are SRL's; names that end in "_prep" refer to the end of the preparation phase. In addition,
    `seen_fraction` is the fraction of rewarded steps in which a seeker saw a hider, and there are the signals of `phases`.

    Args:
        scene: Scene at the start of an episode.
        layout: Layout of the episode.
        game: Rules.
    """

    def __init__(self, scene: Scene, layout: Layout, game: Game) -> None:
        self._scene = scene
        self._walls, self._doors, self._ground = (
            rows_of_walls(layout.walls),
            rows_of_doors(layout.doors),
            make_ground(game),
        )
        self._sizes = scene.num_hiders, scene.num_agents, scene.num_boxes
        self._signals, self._poses = np.zeros(len(SIGNAL_NAMES)), self._present_poses()
        self._start = scene.position[scene.num_agents :, :3].copy()
        self._returns = np.zeros(scene.num_agents)
        self._steps = self._seen_steps = 0
        self._prep: dict[str, float] = {}

    def add(self, rewards: np.ndarray, sees: np.ndarray, rewarded: bool) -> None:
        """Adds one step: [A] rewards, [A, A] bool sight of agents, whether the preparation phase is over."""
        hiders = self._scene.num_hiders
        seen = bool(sees[hiders:, :hiders].any())
        before, self._poses = self._poses, self._present_poses()
        count_step(self._signals, before, self._poses, sees.astype(np.int64), self._walls, (*self._sizes, rewarded))
        self._returns += rewards
        self._steps += rewarded
        self._seen_steps += rewarded and seen

    def end_preparation(self, locked: np.ndarray) -> None:
        """Records the changes during the preparation phase; once."""
        self._prep = {f"{name}_prep": value for name, value in self._changes(locked).items()}
        held = locked.astype(np.int64)
        end_preparation(self._signals, self._poses, held, self._walls, self._doors, self._sizes, self._ground)

    @property
    def preparation_ended(self) -> bool:
        """True after `end_preparation`."""
        return bool(self._prep)

    def as_dict(self, locked: np.ndarray) -> dict[str, float]:
        """Returns the statistics; `locked` [M] bool are the present locks."""
        if not self._prep:
            self.end_preparation(locked)  # an episode that ended in the preparation phase
        signals = dict(zip(SIGNAL_NAMES, self._signals.tolist(), strict=True))
        signals[SIGNAL_NAMES[CHASED]] /= max(1, self._steps)
        return {
            **self._prep,
            **self._changes(locked),
            "hider_return": float(self._returns[0]),
            "seeker_return": float(self._returns[-1]),
            "seen_fraction": self._seen_steps / max(1, self._steps),
            **signals,
        }

    def _present_poses(self) -> np.ndarray:
        """Returns [N, 7] the poses of all bodies, as `phases` describes them."""
        scene, agents = self._scene, self._scene.num_agents
        poses = np.zeros((len(scene.position), POSE_COLUMNS))
        poses[:, [POSE_X, POSE_Y]] = scene.centers()[:, :2]
        poses[:agents, FEET] = scene.position[:agents, 2]
        poses[:, POSE_COS], poses[:, POSE_SIN] = np.cos(scene.position[:, 3]), np.sin(scene.position[:, 3])
        poses[agents:, [POSE_HALF_X, POSE_HALF_Y]] = scene.half_sizes[:, :2]
        return poses

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
