"""PPO on CartPole, whose learner process raises an error of its own with its fourth trajectory."""

import itertools

from experiments.ppo_cartpole import EXPERIMENT
from jaxsrl.collect.pool import PoolCollector
from jaxsrl.experiment import cli

if __name__ == "__main__":
    acquire, calls = PoolCollector.acquire, itertools.count(1)

    def failing(self, timeout_seconds):
        sequence = acquire(self, timeout_seconds)
        if sequence is not None and next(calls) == 4:
            raise ZeroDivisionError("before update 4")
        return sequence

    PoolCollector.acquire = failing
    cli(EXPERIMENT)
