"""PPO on CartPole, whose learner stays in native code with its fourth trajectory."""

import ctypes
import itertools

from experiments.ppo_cartpole import Experiment, main
from jaxsrl.collect.pool_source import PoolSource
from jaxsrl.launch import launch

if __name__ == "__main__":
    acquire, calls = PoolSource.acquire, itertools.count()

    def stuck(self, timeout_seconds):
        found = acquire(self, timeout_seconds)
        if found is not None and next(calls) == 3:
            ctypes.CDLL(None).sleep(600)
        return found

    PoolSource.acquire = stuck
    launch(main, Experiment)
