"""Seeds of episodes, derived from (run seed, row, episode) only, so that any episode can be replayed."""

import numpy as np

_BLOCK = 64  # episodes per SeedSequence: making one costs as much as several hundred steps of a small environment


class EpisodeSeeds:
    """Seeds of one row's episodes."""

    def __init__(self, run_seed: int, row: int) -> None:
        self._entropy = (run_seed, row)
        self._block = -1
        self._seeds: list[int] = []

    def seed(self, episode: int) -> int:
        """Returns the 32-bit seed of an episode."""
        block, place = divmod(episode, _BLOCK)
        if block != self._block:
            sequence = np.random.SeedSequence((*self._entropy, block))
            self._seeds = sequence.generate_state(_BLOCK, np.uint32).tolist()
            self._block = block
        return self._seeds[place]


def episode_seed(run_seed: int, row: int, episode: int) -> int:
    """Returns the 32-bit seed of one episode."""
    return EpisodeSeeds(run_seed, row).seed(episode)
