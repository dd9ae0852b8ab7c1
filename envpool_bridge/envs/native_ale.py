"""Atari games stepped by ALE's own C++ threads, with the options of suite "atari" and its frames.

Both skip frames, take the maximum over the last two, resize it, and begin episodes with up to 30 no-ops. They differ where
randomness enters: each draws no-ops and sticky actions with its own generator, so equal seeds give equal frames only where
neither is drawn. ALE's own default of pressing FIRE at a reset is not taken over.
"""

import dataclasses
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv, VectorWrapper

from envpool_bridge.envs.suites.atari import AtariOptions
from envpool_bridge.envs.suites.optional_imports import require_package
from envpool_bridge.envs.suites.options import options_of, require_at_least
from envpool_bridge.envs.suites.registry import register_atari, registered_with_prefix
from envpool_bridge.envs.vector_env import VectorSource
from envpool_bridge.errors import UserError

_SEEDS = 2**31  # ALE takes C's int, and a negative one for no seed


@dataclasses.dataclass(frozen=True)
class AtariVectorOptions(AtariOptions):
    """Those of suite "atari", except what ALE's vector environment cannot do, and its threads.

    Attributes:
        num_threads: that step the rows; 0 for as many as there are cores (and no more than rows).
        thread_affinity_offset: core that the first thread keeps to, the others following it; -1 leaves it to the kernel.
    """

    num_threads: int = 0
    thread_affinity_offset: int = -1

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(0, num_threads=self.num_threads)
        require_at_least(-1, thread_affinity_offset=self.thread_affinity_offset)
        if self.mode is not None or self.difficulty is not None:
            raise UserError("suite 'atari_vector' cannot choose mode or difficulty: use suite 'atari'")
        if self.terminal_on_life_loss:
            raise UserError(
                "suite 'atari_vector' cannot end episodes with each life: ALE's vector environment would begin a new game "
                "with each, so that no later life is ever seen; use suite 'atari'"
            )


@dataclasses.dataclass(frozen=True)
class AleVectorSource(VectorSource):
    """Rows of one `ale_py.vector_env.AtariVectorEnv`.

    Attributes:
        options: of the game.
    """

    options: AtariVectorOptions = AtariVectorOptions()

    def for_evaluation(self) -> "AleVectorSource":
        """Rows that count the score, whatever rewards learning sees."""
        options = dataclasses.replace(self.options, clip_rewards=False)
        return dataclasses.replace(self, make_vector_env=partial(_make, self.env_id, options), options=options)


def ale_vector_source(env_id: str, kwargs: dict[str, Any], check_range: bool) -> AleVectorSource:
    """Rows of an Atari game; [frame_stack, 84, 84] uint8 as agents see it, of which each frame is stored once.

    Raises:
        UserError: no such game, unknown or bad options, or the package is missing.
    """
    require_package("ale_py", "atari")
    register_atari()
    registered_with_prefix(env_id, "atari_vector", ("ALE/",))
    options = options_of(AtariVectorOptions, "atari_vector", env_id, kwargs)
    return AleVectorSource(
        partial(_make, env_id, options),
        env_id,
        options.frame_skip,
        check_range,
        options.frame_stack,
        seeds_rows=True,
        options=options,
    )


def _make(env_id: str, options: AtariVectorOptions, num_envs: int) -> VectorEnv:
    from ale_py.vector_env import AtariVectorEnv

    register_atari()
    return _OneFrame(
        AtariVectorEnv(
            gymnasium.spec(env_id).kwargs["game"],
            num_envs,
            num_threads=options.num_threads,
            thread_affinity_offset=options.thread_affinity_offset,
            max_num_frames_per_episode=options.max_frames,
            repeat_action_probability=options.repeat_action_probability,
            full_action_space=options.full_action_space,
            img_height=options.screen_size,
            img_width=options.screen_size,
            grayscale=options.grayscale,
            stack_num=1,  # it would begin episodes with frames of zeros, where suite "atari" repeats the first
            frameskip=options.frame_skip,
            noop_max=options.noop_max,
            reward_clipping=options.clip_rewards,
            use_fire_reset=False,
        )
    )


class _OneFrame(VectorWrapper):
    """Observations without the axis of a stack of one, as views; seeds as a list with one a row."""

    def __init__(self, env: VectorEnv) -> None:
        super().__init__(env)
        shape = env.single_observation_space.shape or ()
        self.single_observation_space = spaces.Box(0, 255, shape[1:], np.uint8)
        self._step = env.step

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        if seed is not None:
            each = seed if isinstance(seed, list) else range(seed, seed + self.num_envs)
            seed = np.array([-1 if one is None else one % _SEEDS for one in each], np.int64)
        observation, infos = self.env.reset(seed=seed, options=options)
        return observation[:, 0], infos

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        observation, reward, terminated, truncated, infos = self._step(actions)
        return observation[:, 0], reward, terminated, truncated, infos
