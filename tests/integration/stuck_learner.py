"""PPO on CartPole, whose learner stays in native code with its fourth trajectory."""

import ctypes
import itertools

from experiments.ppo_cartpole import EXPERIMENT
from jaxsrl.collect.pool import PoolCollector
from jaxsrl.experiment import cli

if __name__ == "__main__":
    acquire, calls = PoolCollector.acquire, itertools.count()

    def stuck(self, timeout_seconds):
        found = acquire(self, timeout_seconds)
        if found is not None and next(calls) == 3:
            ctypes.CDLL(None).sleep(600)
        return found

    PoolCollector.acquire = stuck
    cli(EXPERIMENT)
