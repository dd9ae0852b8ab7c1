"""The `jaxsrl` command: evaluate checkpoints, show plans, run benchmarks. Imports wait until needed, so that --help is quick."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import tyro

from agents.networks.config import CoreName
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
        video: also record episodes into this file, *.mp4.
        video_episodes: how many; those that `--max-rows 1` plays first.
    """

    path: tyro.conf.Positional[Path]
    episodes: int = 100
    json: bool = False
    stochastic: bool = False
    seed: int = 0
    max_rows: int = 32
    video: Path | None = None
    video_episodes: int = 1


@dataclasses.dataclass(frozen=True)
class ShowPlan:
    """Show what an experiment would run where, and what flows between, without training. Further flags are the experiment's.

    Attributes:
        experiment: Python file with an `Experiment` dataclass and `main`, as those in experiments/.
        policy: distribution policy by name, or your own as file.py:function; the experiment's if empty.
        cores: processor cores to plan for; 0 for those of this machine.
        gpus: GPUs to plan for, as if there were so many; 0 for the devices of this machine.
        out: also draw it into this file, .svg or .png.
        json: print one JSON object instead of tables.
    """

    experiment: tyro.conf.Positional[Path]
    policy: str = ""
    cores: int = 0
    gpus: int = 0
    out: Path | None = None
    json: bool = False


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
class BenchPlans:
    """Train PPO on CartPole under every distribution policy: speed, policy lag, idle learner, memory.

    Attributes:
        policies: names; all of them if none is given.
        env_steps: length of each run.
        num_envs: environments in all.
        json: print one JSON object instead of a table.
    """

    policies: tuple[str, ...] = ()
    env_steps: int = 400_000
    num_envs: int = 128
    json: bool = False


@dataclasses.dataclass(frozen=True)
class BenchSleep:
    """Train on environments that sleep: how near rows / sleep it comes, by worker processes and by rows.

    Attributes:
        milliseconds: of sleep a step.
        rows: environments in all.
        json: print one JSON object instead of a table.
    """

    milliseconds: float = 5.0
    rows: int = 256
    json: bool = False


@dataclasses.dataclass(frozen=True)
class BenchStepTimes:
    """Step environments whose steps take different times: asynchronous lanes against lockstep.

    Attributes:
        rows: environments, one worker process each.
        least: milliseconds a step at least.
        most: milliseconds a step at most; each is drawn uniformly.
        seconds: that each contender steps.
        json: print one JSON object instead of a table.
    """

    rows: int = 16
    least: float = 1.0
    most: float = 50.0
    seconds: float = 20.0
    json: bool = False


@dataclasses.dataclass(frozen=True)
class BenchDevice:
    """Train PPO with environments on the device, against PureJaxRL's published shape (and rejax, where it is installed).

    Attributes:
        num_envs: numbers of environments to measure.
        seconds: of measuring at each.
        json: print one JSON object instead of a table.
    """

    num_envs: tuple[int, ...] = (64, 512, 2048)
    seconds: float = 10.0
    json: bool = False


@dataclasses.dataclass(frozen=True)
class BenchRecurrent:
    """Train PPO with and without memory on CartPole.

    Attributes:
        cores: to measure against none.
        num_envs: environments in all.
        env_steps: length of each run.
        json: print one JSON object instead of a table.
    """

    cores: tuple[CoreName, ...] = ("gru", "lstm")
    num_envs: int = 128
    env_steps: int = 300_000
    json: bool = False


@dataclasses.dataclass(frozen=True)
class BenchGpu:
    """Run the tests and benchmarks that need an accelerator and record them; without one, say so."""


Bench = Annotated[
    Annotated[BenchPool, tyro.conf.subcommand("pool")]
    | Annotated[BenchTrain, tyro.conf.subcommand("train")]
    | Annotated[BenchPlans, tyro.conf.subcommand("plans")]
    | Annotated[BenchSleep, tyro.conf.subcommand("sleep")]
    | Annotated[BenchStepTimes, tyro.conf.subcommand("step-times")]
    | Annotated[BenchDevice, tyro.conf.subcommand("device")]
    | Annotated[BenchRecurrent, tyro.conf.subcommand("recurrent")]
    | Annotated[BenchGpu, tyro.conf.subcommand("gpu")],
    tyro.conf.arg(name=""),
]


@dataclasses.dataclass(frozen=True)
class BenchCommand:
    """Benchmarks, as ratios against named baselines in one run."""

    what: Bench


Command = (
    Annotated[Evaluate, tyro.conf.subcommand("evaluate")]
    | Annotated[ShowPlan, tyro.conf.subcommand("plan")]
    | Annotated[BenchCommand, tyro.conf.subcommand("bench")]
)


@exit_on_user_error
def main(arguments: list[str] | None = None) -> None:
    """Entry point of the command; `arguments` default to the command line's."""
    arguments = sys.argv[1:] if arguments is None else arguments
    command, flags = _parse(arguments)
    if isinstance(command, ShowPlan):
        _plan(command, flags)
        return
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
    elif isinstance(bench, BenchPlans):
        from jaxsrl.bench.plans import bench_plans

        rows = bench_plans(bench.policies, bench.env_steps, bench.num_envs)
        _show_rows({"plans": rows}, bench.json)
    elif isinstance(bench, BenchSleep):
        from jaxsrl.bench.sleep import SleepBench, bench_sleep

        _show_rows(bench_sleep(SleepBench(bench.milliseconds, bench.rows)), bench.json)
    elif isinstance(bench, BenchStepTimes):
        from jaxsrl.bench.step_times import bench_step_times

        _show(bench_step_times(bench.rows, bench.least, bench.most, bench.seconds), bench.json, "step times")
    elif isinstance(bench, BenchDevice):
        from jaxsrl.bench.device_only import bench_device_only

        measured = bench_device_only(bench.num_envs, seconds=bench.seconds)
        sizes = [{"num_envs": size, **found} for size, found in measured.pop("by_num_envs").items()]
        _show_rows({**measured, "sizes": sizes}, bench.json)
    elif isinstance(bench, BenchRecurrent):
        from jaxsrl.bench.recurrent import bench_recurrent

        _show_rows(bench_recurrent(bench.cores, num_envs=bench.num_envs, env_steps=bench.env_steps), bench.json)
    else:
        from jaxsrl.bench.gpu import bench_gpu

        bench_gpu()


def _parse(arguments: list[str]) -> tuple[Any, list[str]]:
    """The command, and the flags that belong to the experiment whose plan is shown."""
    settings: dict[str, Any] = {"prog": "jaxsrl", "description": __doc__}
    if arguments[:1] != ["plan"]:
        return tyro.cli(Command, args=arguments, **settings), []  # pyright: ignore
    command, flags = tyro.cli(Command, args=arguments, return_unknown_args=True, **settings)  # pyright: ignore
    return command, flags


def _plan(command: ShowPlan, flags: list[str]) -> None:
    from jaxsrl.plan_of_experiment import plan_experiment
    from jaxsrl.print_plan import print_plan

    if command.policy:
        flags = [*flags, "--policy", command.policy]
    planned = plan_experiment(command.experiment, flags, command.cores, command.gpus)
    if command.out is not None:
        from jaxsrl.dataflow.draw import draw_plan

        draw_plan(planned.plan, planned.sizes, command.out, planned.resources.platform)
    if command.json:
        print(json.dumps(planned.to_json()))  # noqa: T201
    else:
        print_plan(planned)


def _evaluate(command: Evaluate) -> None:
    from agents.api import Mode
    from jaxsrl.checkpoint import DamagedCheckpointError
    from jaxsrl.evaluate import evaluate
    from jaxsrl.load import load_agent
    from jaxsrl.run_directory import write_json
    from jaxsrl.video import Video

    try:
        loaded = load_agent(command.path)
    except DamagedCheckpointError as error:
        print(f"error: damaged checkpoint {error}", file=sys.stderr)  # noqa: T201
        sys.exit(1)
    for problem in loaded.problems:
        print(f"warning: damaged checkpoint skipped: {problem}", file=sys.stderr)  # noqa: T201
    mode = Mode.SAMPLE if command.stochastic else Mode.GREEDY
    video = None if command.video is None else Video(loaded.source, command.video, command.video_episodes)
    report = evaluate(
        loaded.agent,
        loaded.params,
        loaded.source,
        episodes=command.episodes,
        seed=command.seed,
        mode=mode,
        max_rows=command.max_rows,
    )
    result = {"checkpoint": str(loaded.checkpoint), "update": loaded.update, **report.to_json()}
    if video is not None:
        video.record(loaded.agent, loaded.params, seed=command.seed, mode=mode)
        result["video"] = str(command.video)
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


def _show_rows(result: dict[str, Any], as_json: bool) -> None:
    """Lists of rows as a table each, single values below them."""
    if as_json:
        print(json.dumps(result))  # noqa: T201
        return
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    console = Console(file=sys.stdout)
    console.width = max(console.width, 160)
    for name, rows in result.items():
        if not isinstance(rows, list):
            console.print(f"{name}: {rows}")
            continue
        table = Table(title=name, title_justify="left", box=SIMPLE_HEAD)
        for column in rows[0]:
            table.add_column(column.replace("_", " "))
        for row in rows:
            table.add_row(*(f"{value:,.2f}" if isinstance(value, float) else f"{value}" for value in row.values()))
        console.print(table)


if __name__ == "__main__":
    main()
