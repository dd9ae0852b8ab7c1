"""Atari games stepped by ALE's own C++ threads, with the options and frames of suite "atari".

Both suites skip frames, take the maximum over the last two, resize it, and start episodes with up to 30 no-ops. Each
draws no-ops and sticky actions with its own generator, so equal seeds give equal frames only if neither is drawn. ALE's
default of pressing FIRE at a reset is not used.
"""

import dataclasses
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv, VectorWrapper

from envpool_bridge.envs.suites.atari import AtariOptions
from envpool_bridge.envs.suites.optional_imports import validate_installed
from envpool_bridge.envs.suites.options import options_of, validate_at_least
from envpool_bridge.envs.suites.registry import register_atari, registered_with_prefix
from envpool_bridge.envs.vector_env import VectorSource
from envpool_bridge.errors import UserError

_SEEDS = 2**31  # ALE takes a C int; a negative one means no seed


@dataclasses.dataclass(frozen=True)
class AtariVectorOptions(AtariOptions):
    """Options of suite "atari", without those that ALE's vector environment lacks, and its threads.

    Attributes:
        num_threads: threads that step the rows; 0 for the number of cores (at most the number of rows).
        thread_affinity_offset: core of the first thread; the others follow it. -1 leaves it to the kernel.
    """

    num_threads: int = 0
    thread_affinity_offset: int = -1

    def __post_init__(self) -> None:
        super().__post_init__()
        validate_at_least(0, num_threads=self.num_threads)
        validate_at_least(-1, thread_affinity_offset=self.thread_affinity_offset)
        if self.mode is not None or self.difficulty is not None:
            raise UserError("suite 'atari_vector' cannot choose mode or difficulty: use suite 'atari'")
        if self.terminal_on_life_loss:
            raise UserError(
                "suite 'atari_vector' cannot end episodes with each life: ALE's vector environment would start a new game "
                "after each, so that later lives are never played; use suite 'atari'"
            )


@dataclasses.dataclass(frozen=True)
class AleVectorSource(VectorSource):
    """Rows of one `ale_py.vector_env.AtariVectorEnv`.

    Attributes:
        options: Options of the game.
    """

    options: AtariVectorOptions = AtariVectorOptions()

    def for_evaluation(self) -> "AleVectorSource":
        """Returns rows that count the score, without the changes to rewards for learning."""
        options = dataclasses.replace(self.options, clip_rewards=False)
        return dataclasses.replace(self, make_vector_env=partial(_make, self.env_id, options), options=options)


def ale_vector_source(env_id: str, kwargs: dict[str, Any], strict: bool) -> AleVectorSource:
    """Returns the source of an Atari game: [frame_stack, 84, 84] uint8 as agents see it, each frame stored once.

    Raises:
        UserError: unknown game, unknown or bad options, or the package is missing.
    """
    validate_installed("ale_py", "atari")
    register_atari()
    registered_with_prefix(env_id, "atari_vector", ("ALE/",))
    options = options_of(AtariVectorOptions, "atari_vector", env_id, kwargs)
    return AleVectorSource(
        partial(_make, env_id, options),
        env_id,
        options.frame_skip,
        strict,
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
            stack_num=1,  # it starts episodes with frames of zeros; suite "atari" repeats the first frame
            frameskip=options.frame_skip,
            noop_max=options.noop_max,
            reward_clipping=options.clip_rewards,
            use_fire_reset=False,
        )
    )


class _OneFrame(VectorWrapper):
    """Vector environment without the axis of a stack of one, as views; takes a list with one seed for each row."""

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
