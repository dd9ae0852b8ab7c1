"""How fast PPO trains a network with memory, against the same network without, in one run."""

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
    """Env steps per second of `bench_train` with each core, and its ratio to none; CartPole-v1, T = 32, MLP 64x64.

    A network with memory has the core beside the two dense layers, and unrolls `chunk_length` steps one after the other where the
    other learns from all of them at once.

    Args:
        cores: to measure.
        workers: environment processes.
        num_envs: environments in all.
        env_steps: of each run.
        core_size: outputs of the cores.
        chunk_length: steps unrolled with gradient; 32 / chunk_length divides by 4, the number of minibatches.
        rounds: turns of all contenders; ratios are medians of those of the rounds.

    Raises:
        UserError: no round is asked for.
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
            found = bench_train(workers, num_envs, env_steps=env_steps, network=network, agent=config)
            speeds[name].append(found["env_steps_per_second"])
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
