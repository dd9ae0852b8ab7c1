"""Learner speed with samples prepared by the learner, and on one device next to it.

python docs/lab/prepare.py [UPDATES [ROUNDS]]
"""

import dataclasses
import statistics
import sys
import tempfile

from experiments.muzero_cartpole import EXPERIMENT
from jaxsrl import MachineConfig, PoolConfig, ReplayMemoryConfig
from jaxsrl.machine.split_cpu import set_num_cpu_devices

UPDATES, ROUNDS = (
    int(sys.argv[number]) if len(sys.argv) > number else default for number, default in ((1, 40), (2, 3))
)
PLACES = {"k = 0": (0, 0), "k = 1, lag 0": (1, 0), "k = 1, lag 2": (1, 2), "k = 1, lag 8": (1, 8)}


def seconds(devices: int, lag: int, updates: int) -> float:
    """Returns the seconds of a run of CartPole with reanalysis of all windows, 64 gradient steps an update."""
    replay = dataclasses.replace(EXPERIMENT.agent.replay, min_size=256, priority_delay=8)
    agent = dataclasses.replace(EXPERIMENT.agent, replay=replay, reanalyze_fraction=1.0)
    with tempfile.TemporaryDirectory() as directory:
        run = dataclasses.replace(
            EXPERIMENT.run,
            plan="serial",
            directory=directory,
            total_env_steps=256 * updates,
            replay=ReplayMemoryConfig("host", devices, lag),
            machine=MachineConfig(num_cpu_devices=2),
            pool=PoolConfig(num_workers=1),
            eval=dataclasses.replace(EXPERIMENT.run.eval, final_episodes=0),
        )
        experiment = dataclasses.replace(EXPERIMENT, agent=agent, run=run)
        return experiment.train(quiet=True).seconds


if __name__ == "__main__":
    set_num_cpu_devices(2)
    speeds: dict[str, list[float]] = {name: [] for name in PLACES}
    for _ in range(ROUNDS):  # in turns
        for name, (devices, lag) in PLACES.items():
            # The difference of two runs has no compilation in it.
            taken = seconds(devices, lag, UPDATES) - seconds(devices, lag, 4)
            speeds[name].append(64 * (UPDATES - 4) / taken)
    for name, values in speeds.items():
        print(f"{name:14s} {statistics.median(values):8.1f} gradient steps/s ({min(values):.1f} to {max(values):.1f})")  # noqa: T201
