"""Benchmark of PPO's training speed with a recurrent network against a feed-forward one, in one run."""

import dataclasses
import statistics
from typing import Any

from agents.networks.config import CoreName, NetworkConfig
from agents.ppo import PPOConfig
from envpool_bridge.errors import UserError
from jaxsrl.bench.train import bench_train

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
    """Measures env steps per second of `bench_train` with each core and without; CartPole-v1, T = 32, MLP 64x64.

    A recurrent network has the core in addition to the two dense layers. It unrolls `chunk_length` steps sequentially, while the
    other trains on all of them at once.

    Args:
        cores: to measure.
        workers: environment processes.
        num_envs: environments in all.
        env_steps: of each run.
        core_size: outputs of the cores.
        chunk_length: steps unrolled with gradient; 32 / chunk_length must be a multiple of 4, the number of minibatches.
        rounds: turns of all contenders; ratios are medians of the rounds' ratios.

    Raises:
        UserError: `rounds` is less than 1.
    """
    if rounds < 1:
        raise UserError(f"rounds must be at least 1: got {rounds}")
    names: list[CoreName] = [_WITHOUT, *[core for core in cores if core != _WITHOUT]]
    speeds: dict[CoreName, list[float]] = {name: [] for name in names}
    agent = PPOConfig(chunk_length=chunk_length)
    for _ in range(rounds):
        for name in names:
            network = NetworkConfig(core=name, core_size=core_size)
            config = agent if name != _WITHOUT else dataclasses.replace(agent, chunk_length=None)
            measured = bench_train(workers, num_envs, env_steps=env_steps, network=network, agent=config)
            speeds[name].append(measured["env_steps_per_second"])
    rows = [
        {
            "core": name,
            "env_steps_per_second": statistics.median(values),
            "ratio_to_feed_forward": statistics.median(
                mine / base for mine, base in zip(values, speeds[_WITHOUT], strict=True)
            ),
        }
        for name, values in speeds.items()
    ]
    sizes = {"num_envs": num_envs, "core_size": core_size, "chunk_length": chunk_length, "rounds": rounds}
    return {"cores": rows, **sizes}
