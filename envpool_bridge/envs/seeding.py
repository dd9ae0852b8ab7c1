"""Seeds of episodes, derived from (run seed, row, episode) only, so that any episode can be replayed."""

from collections.abc import Sequence

import numpy as np

_GOLDEN_RATIO = 0.6180339887498949
_BLOCK = 64  # episodes per SeedSequence: making one costs as much as several hundred steps of a small environment


class NamedSeeds(int):
    """Run seed whose episodes have the seeds that a user names, in turn.

    An int, because it takes the place of a run's seed in every process. Episode n of environment e has the seed number
    n `num_envs` + e, modulo the number of seeds.

    Attributes:
        seeds: seeds of the episodes.
        num_envs: environments that play the episodes together.
    """

    seeds: tuple[int, ...]
    num_envs: int

    def __new__(cls, run_seed: int, seeds: Sequence[int], num_envs: int) -> "NamedSeeds":
        named = super().__new__(cls, run_seed)
        named.seeds, named.num_envs = tuple(seeds), num_envs
        return named

    def __reduce__(self) -> tuple[type["NamedSeeds"], tuple[int, tuple[int, ...], int]]:
        return NamedSeeds, (int(self), self.seeds, self.num_envs)

    def seed(self, env: int, episode: int) -> int:
        """Returns the seed of an environment's episode."""
        return self.seeds[(episode * self.num_envs + env) % len(self.seeds)]


class EpisodeSeeds:
    """Seeds of one row's episodes."""

    def __init__(self, run_seed: int, row: int) -> None:
        self._named = run_seed if isinstance(run_seed, NamedSeeds) else None
        self._entropy = (int(run_seed), row)
        self._block = -1
        self._seeds: list[int] = []

    def seed(self, episode: int) -> int:
        """Returns the seed of an episode, in [0, 2**31) unless named: some environments keep it in a C int."""
        if self._named is not None:
            return self._named.seed(self._entropy[1], episode)
        block, place = divmod(episode, _BLOCK)
        if block != self._block:
            sequence = np.random.SeedSequence((*self._entropy, block))
            self._seeds = (sequence.generate_state(_BLOCK, np.uint32) % 2**31).tolist()
            self._block = block
        return self._seeds[place]


def episode_seed(run_seed: int, row: int, episode: int) -> int:
    """Returns the seed of one episode, in [0, 2**31)."""
    return EpisodeSeeds(run_seed, row).seed(episode)


def first_episode_steps(run_seed: int, env: int, longest: int) -> int:
    """Returns the steps after which the first episode of an environment is truncated, 1 to `longest`.

    Multiples of the golden ratio, from a start that the seed gives, are spread evenly for any number of environments.
    """
    start = np.random.SeedSequence(run_seed).generate_state(1, np.uint32)[0] / 2**32
    return 1 + int((start + env * _GOLDEN_RATIO) % 1.0 * longest)
