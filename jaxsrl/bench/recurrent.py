"""Benchmark of PPO's training speed with a recurrent network against a feed-forward one, in one run."""

import statistics
from functools import partial
from typing import Any

from agents.networks.config import CoreName, NetworkConfig
from agents.ppo import PPOConfig
from jaxsrl.bench.train import measure_training
from jaxsrl.bench.turns import median_ratio, take_turns

_WITHOUT: CoreName = "none"


def bench_recurrent(
    cores: tuple[CoreName, ...] = ("gru", "lstm"),
    workers: int = 2,
    num_envs: int = 128,
    env_steps: int = 300_000,
    core_size: int = 64,
    chunk_length: int = 8,
    rounds: int = 2,
) -> dict[str, Any]:
    """Measures env steps per second of PPO on CartPole-v1 with each recurrent core and without; T = 32, MLP 64x64.

    A recurrent network has the core in addition to the two dense layers. It unrolls `chunk_length` steps sequentially, while the
    other trains on all of them at once.

    Args:
        cores: Cores to compare with a feed-forward network.
        workers: environment processes.
        num_envs: environments in all.
        env_steps: length of each run.
        core_size: outputs of the cores.
        chunk_length: steps unrolled with gradient; 32 / chunk_length must be a multiple of 4, the number of minibatches.
        rounds: turns of all contenders; ratios are medians of the rounds' ratios.

    Returns:
        A row of `cores` for each network, and the sizes.
    """

    def measure(core: CoreName) -> dict[str, Any]:
        network = NetworkConfig() if core == _WITHOUT else NetworkConfig(core=core, core_size=core_size)
        agent = PPOConfig(chunk_length=None if core == _WITHOUT else chunk_length)
        return measure_training(workers, num_envs, env_steps=env_steps, network=network, agent=agent)

    runs = take_turns({core: partial(measure, core) for core in (_WITHOUT, *cores)}, rounds)
    speeds = {core: [run["env_steps_per_second"] for run in runs[core]] for core in runs}
    rows = [
        {
            "core": name,
            "env_steps_per_second": statistics.median(values),
            "ratio_to_feed_forward": median_ratio(values, speeds[_WITHOUT]),
        }
        for name, values in speeds.items()
    ]
    sizes = {"num_envs": num_envs, "core_size": core_size, "chunk_length": chunk_length, "rounds": rounds}
    return {"cores": rows, **sizes}
