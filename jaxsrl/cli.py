"""The `jaxsrl` command: evaluate checkpoints, run benchmarks. Imports wait until they are needed, so that --help is quick."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import tyro

from jaxsrl.runtime.launch import exit_on_user_error


@dataclasses.dataclass(frozen=True)
class Evaluate:
    """Play whole episodes with the parameters of a run or a checkpoint.

    Attributes:
        path: run directory (its newest good checkpoint is taken) or checkpoint directory.
        episodes: how many.
        json: print one JSON object instead of a table.
        stochastic: sample actions instead of taking the most likely one.
        seed: of environments and actions.
        max_rows: environments side by side.
    """

    path: tyro.conf.Positional[Path]
    episodes: int = 100
    json: bool = False
    stochastic: bool = False
    seed: int = 0
    max_rows: int = 32


@dataclasses.dataclass(frozen=True)
class BenchPool:
    """Step environments: the pool, bare processes, and Gymnasium's vector environments, side by side.

    Attributes:
        env: environment id.
        suite: as in EnvConfig.
        workers: environment processes.
        envs_per_worker: environments each steps.
        lanes_per_worker: lanes of the pool.
        seconds: that each contender steps.
        json: print one JSON object instead of a table.
    """

    env: str = "CartPole-v1"
    suite: str = "gymnasium"
    workers: int = 2
    envs_per_worker: int = 64
    lanes_per_worker: int = 1
    seconds: float = 5.0
    json: bool = False


@dataclasses.dataclass(frozen=True)
class BenchTrain:
    """Train PPO on CartPole: env steps per second while learning, and what each part waited.

    Attributes:
        workers: environment processes.
        num_envs: environments in all.
        max_policy_lag: as in RunConfig.
        env_steps: length of the run.
        json: print one JSON object instead of a table.
    """

    workers: int = 2
    num_envs: int = 128
    max_policy_lag: int = 1
    env_steps: int = 800_000
    json: bool = False


@dataclasses.dataclass(frozen=True)
class BenchGpu:
    """Run the tests and benchmarks that need an accelerator and record them; without one, say so."""


Bench = Annotated[
    Annotated[BenchPool, tyro.conf.subcommand("pool")]
    | Annotated[BenchTrain, tyro.conf.subcommand("train")]
    | Annotated[BenchGpu, tyro.conf.subcommand("gpu")],
    tyro.conf.arg(name=""),
]


@dataclasses.dataclass(frozen=True)
class BenchCommand:
    """Benchmarks, as ratios against named baselines in one run."""

    what: Bench


Command = Annotated[Evaluate, tyro.conf.subcommand("evaluate")] | Annotated[BenchCommand, tyro.conf.subcommand("bench")]


@exit_on_user_error
def main(arguments: list[str] | None = None) -> None:
    """Entry point of the command; `arguments` default to the command line's."""
    command: Any = tyro.cli(Command, args=arguments, prog="jaxsrl", description=__doc__)  # pyright: ignore
    if isinstance(command, Evaluate):
        _evaluate(command)
        return
    bench = command.what
    if isinstance(bench, BenchPool):
        from envpool_bridge.adapters.environment import EnvConfig
        from jaxsrl.bench.pool import bench_pool

        env = EnvConfig(bench.env, suite=bench.suite)  # pyright: ignore[reportArgumentType]
        result = bench_pool(env, bench.workers, bench.envs_per_worker, bench.seconds, bench.lanes_per_worker)
        _show(result, bench.json, "bench pool")
    elif isinstance(bench, BenchTrain):
        from jaxsrl.bench.train import bench_train

        result = bench_train(bench.workers, bench.num_envs, bench.max_policy_lag, bench.env_steps)
        _show(result, bench.json, "bench train")
    else:
        from jaxsrl.bench.gpu import bench_gpu

        bench_gpu()


def _evaluate(command: Evaluate) -> None:
    from agents.api import Mode
    from jaxsrl.checkpoint import DamagedCheckpointError
    from jaxsrl.evaluate import evaluate
    from jaxsrl.load import load_agent
    from jaxsrl.run_directory import write_json

    try:
        loaded = load_agent(command.path)
    except DamagedCheckpointError as error:
        print(f"error: damaged checkpoint {error}", file=sys.stderr)  # noqa: T201
        sys.exit(1)
    for problem in loaded.problems:
        print(f"warning: damaged checkpoint skipped: {problem}", file=sys.stderr)  # noqa: T201
    report = evaluate(
        loaded.agent,
        loaded.params,
        loaded.source,
        episodes=command.episodes,
        seed=command.seed,
        mode=Mode.SAMPLE if command.stochastic else Mode.GREEDY,
        max_rows=command.max_rows,
    )
    result = {"checkpoint": str(loaded.checkpoint), "update": loaded.update, **report.to_json()}
    if loaded.run_directory is not None:
        write_json(loaded.run_directory / "eval.json", result)
    _show(result, command.json, f"evaluation of {command.path}")


def _show(result: dict[str, Any], as_json: bool, title: str) -> None:
    if as_json:
        print(json.dumps(result))  # noqa: T201
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, show_header=False)
    for name, value in result.items():
        if not isinstance(value, dict | list):
            table.add_row(name, f"{value:,.3f}" if isinstance(value, float) else str(value))
    Console(file=sys.stdout).print(table)


if __name__ == "__main__":
    main()
