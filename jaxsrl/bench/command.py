"""The `jaxsrl bench` command: which benchmarks there are, and their flags. Imports wait until needed."""

import dataclasses
from typing import Annotated, Literal

import tyro

from agents.networks.config import CoreName
from jaxsrl.show_result import show, show_rows


@dataclasses.dataclass(frozen=True)
class BenchPool:
    """Step environments: the pool, bare processes, and Gymnasium's vector environments, side by side.

    Attributes:
        env: environment id.
        suite: as in EnvConfig.
        workers: environment processes.
        envs_per_worker: environments each steps.
        lanes_per_worker: lanes that each worker alternates between.
        workers_per_lane: workers that share a lane, and wait for each other; 0 for all of them.
        busy: processes that compute all the time beside every contender, as other people's work does.
        seconds: that each contender steps.
        rounds: turns that each takes these seconds in; more of them average more of what other users of the machine do.
        json: print one JSON object instead of a table.
    """

    env: str = "CartPole-v1"
    suite: str = "gymnasium"
    workers: int = 2
    envs_per_worker: int = 64
    lanes_per_worker: int = 1
    workers_per_lane: int = 0
    busy: int = 0
    seconds: float = 5.0
    rounds: int = 40
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
        fewer_rows: further numbers of environments: where the rest becomes the bottleneck.
        steps: how the rows of a worker sleep side by side: "begun" (steps are begun together, then waited for) or in "threads".
        awake: keep all cores from falling asleep meanwhile, as --run.keep-cores-awake does.
        json: print one JSON object instead of a table.
    """

    milliseconds: float = 5.0
    rows: int = 256
    fewer_rows: tuple[int, ...] = (16, 32, 64, 128)
    steps: Literal["begun", "threads"] = "begun"
    awake: bool = False
    json: bool = False


@dataclasses.dataclass(frozen=True)
class BenchScale:
    """Train on ever more environments that only sleep: how many one head serves before it falls 10 % behind, and why.

    Attributes:
        size: of observations.
        milliseconds: of sleep a step.
        rows: numbers of environments, in order.
        workers: environment processes.
        seconds: of each run.
        json: print one JSON object instead of a table.
    """

    size: Literal["cartpole", "atari"] = "cartpole"
    milliseconds: float = 20.0
    rows: tuple[int, ...] = (64, 128, 256, 512, 1024, 2048, 4096)
    workers: int = 4
    seconds: float = 8.0
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
class BenchReplay:
    """Insert into replay buffers and draw from them: ours on device and host, flashbax, a numpy ring, Reverb.

    Attributes:
        sizes: of steps to measure.
        priority_exponent: 0 draws uniformly; above, by priority.
        rounds: turns of each contender.
        seconds: of a turn.
        reverb_python: interpreter of an environment of its own that has dm-reverb; "" leaves Reverb out.
        json: print one JSON object instead of a table.
    """

    sizes: tuple[Literal["atari", "vector"], ...] = ("atari", "vector")
    priority_exponent: float = 0.0
    rounds: int = 5
    seconds: float = 0.5
    reverb_python: str = ""
    json: bool = False


@dataclasses.dataclass(frozen=True)
class BenchCluster:
    """Train PPO on CartPole through environment hosts of a local Ray cluster, and without: what the cluster costs.

    Attributes:
        hosts: environment hosts, each on a node of its own.
        workers: environment processes in all.
        num_envs: environments in all.
        env_steps: length of each run.
        rounds: turns of each contender.
        json: print one JSON object instead of a table.
    """

    hosts: int = 2
    workers: int = 2
    num_envs: int = 128
    env_steps: int = 200_000
    rounds: int = 2
    json: bool = False


@dataclasses.dataclass(frozen=True)
class BenchGuards:
    """Train PPO on CartPole with all guards and without any, in turns: what checks, supervision and finite updates cost.

    Attributes:
        workers: environment processes of each of the two.
        num_envs: environments of each of the two.
        rounds: turns of each, of one trajectory and its update.
        json: print one JSON object instead of a table.
    """

    workers: int = 2
    num_envs: int = 128
    rounds: int = 200
    json: bool = False


@dataclasses.dataclass(frozen=True)
class BenchGpu:
    """Run the tests and benchmarks that need an accelerator and record them; without one, say so."""


Bench = Annotated[
    Annotated[BenchPool, tyro.conf.subcommand("pool")]
    | Annotated[BenchTrain, tyro.conf.subcommand("train")]
    | Annotated[BenchPlans, tyro.conf.subcommand("plans")]
    | Annotated[BenchSleep, tyro.conf.subcommand("sleep")]
    | Annotated[BenchScale, tyro.conf.subcommand("scale")]
    | Annotated[BenchStepTimes, tyro.conf.subcommand("step-times")]
    | Annotated[BenchDevice, tyro.conf.subcommand("device")]
    | Annotated[BenchRecurrent, tyro.conf.subcommand("recurrent")]
    | Annotated[BenchReplay, tyro.conf.subcommand("replay")]
    | Annotated[BenchCluster, tyro.conf.subcommand("cluster")]
    | Annotated[BenchGuards, tyro.conf.subcommand("guards")]
    | Annotated[BenchGpu, tyro.conf.subcommand("gpu")],
    tyro.conf.arg(name=""),
]


@dataclasses.dataclass(frozen=True)
class BenchCommand:
    """Benchmarks, as ratios against named baselines in one run."""

    what: Bench

    def run(self) -> int:
        """Runs the one asked for."""
        run_bench(self.what)
        return 0


def run_bench(bench: Bench) -> None:
    """Measures, and prints what was found."""
    if isinstance(bench, BenchPool):
        from envpool_bridge.adapters.environment import EnvConfig
        from jaxsrl.bench.pool import bench_pool

        env = EnvConfig(bench.env, suite=bench.suite)  # pyright: ignore[reportArgumentType]
        sizes = bench.workers, bench.envs_per_worker, bench.seconds, bench.lanes_per_worker, bench.workers_per_lane
        result = bench_pool(env, *sizes, rounds=bench.rounds, busy=bench.busy)
        show(result, bench.json, "bench pool")
    elif isinstance(bench, BenchTrain):
        from jaxsrl.bench.train import bench_train

        result = bench_train(bench.workers, bench.num_envs, bench.max_policy_lag, bench.env_steps)
        show(result, bench.json, "bench train")
    elif isinstance(bench, BenchPlans):
        from jaxsrl.bench.plans import bench_plans

        rows = bench_plans(bench.policies, bench.env_steps, bench.num_envs)
        show_rows({"plans": rows}, bench.json)
    elif isinstance(bench, BenchSleep):
        from jaxsrl.bench.sleep import SleepBench, bench_sleep

        sleeping = SleepBench(bench.milliseconds, bench.rows, bench.fewer_rows, steps=bench.steps, awake=bench.awake)
        show_rows(bench_sleep(sleeping), bench.json)
    elif isinstance(bench, BenchScale):
        from jaxsrl.bench.scale import ScaleBench, bench_scale

        what = ScaleBench(bench.size, bench.milliseconds, bench.rows, bench.workers, bench.seconds)
        show_rows(bench_scale(what), bench.json)
    elif isinstance(bench, BenchStepTimes):
        from jaxsrl.bench.step_times import bench_step_times

        show(bench_step_times(bench.rows, bench.least, bench.most, bench.seconds), bench.json, "step times")
    else:
        _run_learning(bench)


def _run_learning(bench: BenchDevice | BenchRecurrent | BenchReplay | BenchCluster | BenchGuards | BenchGpu) -> None:
    if isinstance(bench, BenchDevice):
        from jaxsrl.bench.device_only import bench_device_only

        measured = bench_device_only(bench.num_envs, seconds=bench.seconds)
        sizes = [{"num_envs": size, **found} for size, found in measured.pop("by_num_envs").items()]
        show_rows({**measured, "sizes": sizes}, bench.json)
    elif isinstance(bench, BenchRecurrent):
        from jaxsrl.bench.recurrent import bench_recurrent

        show_rows(bench_recurrent(bench.cores, num_envs=bench.num_envs, env_steps=bench.env_steps), bench.json)
    elif isinstance(bench, BenchReplay):
        from jaxsrl.bench.replay import bench_replay

        measured = bench_replay(bench.sizes, bench.priority_exponent, bench.rounds, bench.seconds, bench.reverb_python)
        show_rows(measured, bench.json)
    elif isinstance(bench, BenchCluster):
        from jaxsrl.bench.cluster import bench_cluster

        result = bench_cluster(bench.hosts, bench.workers, bench.num_envs, bench.env_steps, bench.rounds)
        show(result, bench.json, "bench cluster")
    elif isinstance(bench, BenchGuards):
        from jaxsrl.bench.guards import bench_guards

        show(bench_guards(bench.workers, bench.num_envs, bench.rounds), bench.json, "guards")
    else:
        from jaxsrl.bench.gpu import bench_gpu

        bench_gpu()
