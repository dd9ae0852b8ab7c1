"""SAME_STEP to NEXT_STEP autoreset without any pool: two bare processes that wait for each other at every step.

    python docs/lab/same_step.py [rounds]

A reset counts as an env step in both modes. NEXT_STEP resets instead of a step, SAME_STEP within the step that ends the episode.
So steps of two processes differ more in SAME_STEP, and each lasts as long as the slower process. No vector environment that returns
the rows of two processes together can have a better ratio. Nothing else may run on the machine.
"""

import multiprocessing
import statistics
import sys
import time
from multiprocessing.sharedctypes import RawArray
from typing import Any

import gymnasium
import numpy as np

_ENVS = 64  # of each process
_ROUND_SECONDS = 0.25
_MODES = ("NEXT_STEP", "SAME_STEP")


class _Rows:
    """Environments of one process, which writes their observations into its own rows."""

    def __init__(self, seed: int, env_id: str) -> None:
        self._envs = [gymnasium.make(env_id) for _ in range(_ENVS)]
        first = [env.reset(seed=seed * _ENVS + row)[0] for row, env in enumerate(self._envs)]
        self._observation, self._final = np.stack(first), np.stack(first)
        space = self._envs[0].action_space
        space.seed(seed)
        self._actions = [[space.sample() for _ in range(_ENVS)] for _ in range(97)]
        self._ended = [False] * _ENVS
        self._step = 0

    def next_step(self) -> int:
        """Steps each environment once, or resets it if its episode has ended; returns the number of env steps."""
        actions = self._next_actions()
        for row, env in enumerate(self._envs):
            if self._ended[row]:
                self._observation[row], self._ended[row] = env.reset()[0], False
            else:
                self._observation[row], _, terminated, truncated, _ = env.step(actions[row])
                self._ended[row] = terminated or truncated
        return _ENVS

    def same_step(self) -> int:
        """Steps each environment once, and resets it if its episode ends; returns the number of env steps."""
        actions, resets = self._next_actions(), 0
        for row, env in enumerate(self._envs):
            if self._ended[row]:  # left by the other mode
                env.reset()
                self._ended[row] = False
            observation, _, terminated, truncated, _ = env.step(actions[row])
            if terminated or truncated:
                self._final[row] = observation
                observation = env.reset()[0]
                resets += 1
            self._observation[row] = observation
        return _ENVS + resets

    def _next_actions(self) -> list[Any]:
        self._step += 1
        return self._actions[self._step % len(self._actions)]


def _work(number: int, rounds: int, env_id: str, shared: Any, speeds: Any) -> None:
    steps_done, waits = np.frombuffer(shared, np.int64), 0
    rows = _Rows(number, env_id)

    def wait_for_other() -> None:
        nonlocal waits
        waits += 1
        steps_done[number] = waits
        while steps_done[1 - number] < waits:
            pass

    for turn in range(2 * rounds):
        step = rows.next_step if turn % 2 == 0 else rows.same_step
        wait_for_other()
        begin, env_steps, num_steps = time.perf_counter(), 0, 0
        # The first process decides how many steps a turn has; the other reads it after the same wait.
        while True:
            env_steps += step()
            num_steps += 1
            if number == 0:
                steps_done[2] = time.perf_counter() - begin >= _ROUND_SECONDS
            wait_for_other()
            if steps_done[2]:
                break
            wait_for_other()
        seconds = time.perf_counter() - begin
        speeds[2 * turn + number] = env_steps / seconds


def main(rounds: int, env_id: str) -> None:
    """Prints the ratio of the modes' speeds: the median over rounds."""
    context = multiprocessing.get_context("spawn")
    shared, speeds = RawArray("q", 3), RawArray("d", 4 * rounds)
    workers = [context.Process(target=_work, args=(n, rounds, env_id, shared, speeds), daemon=True) for n in (0, 1)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(600)
    both = np.frombuffer(speeds).reshape(rounds, 2, 2).sum(axis=-1)
    ratios = both[:, 1] / both[:, 0]
    quartiles = statistics.quantiles(ratios, n=4)
    for mode, speed in zip(_MODES, np.median(both, axis=0), strict=True):
        print(f"{mode}: {speed:,.0f} env steps/s")  # noqa: T201
    print(f"ratio {statistics.median(ratios):.3f} (quartiles {quartiles[0]:.3f} to {quartiles[2]:.3f})")  # noqa: T201


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100, sys.argv[2] if len(sys.argv) > 2 else "CartPole-v1")
