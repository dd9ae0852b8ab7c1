"""The `jaxsrl bench` command: benchmarks and their flags. Benchmarks are imported on use."""

import dataclasses
import math
from typing import Annotated, Any, Literal, Protocol, Union

import tyro

from agents.networks.config import CoreName
from envpool_bridge.errors import UserError
from jaxsrl.terminal.tables import print_tables

_MAY_BE_ZERO = frozenset({"workers_per_lane", "busy", "max_policy_lag", "priority_exponent"})


class Benchmark(Protocol):
    """A benchmark with its flags: a frozen dataclass."""

    @property
    def json(self) -> bool: ...

    def measure(self) -> dict[str, Any]:
        """Runs the benchmark and returns JSON data."""
        ...


@dataclasses.dataclass(frozen=True)
class BenchPool:
    """Step environments: the pool, bare processes, and Gymnasium's vector environments, in turns.

    Attributes:
        env: environment id.
        suite: as in EnvConfig.
        workers: environment processes.
        envs_per_worker: environments per worker.
        lanes_per_worker: lanes that each worker alternates between.
        workers_per_lane: workers that share a lane and wait for each other; 0 for all of them.
        busy: competing processes that compute all the time, as other users' work does.
        seconds: stepping time of each contender.
        rounds: turns over which the seconds are divided. More turns average more of the machine's other load.
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

    def measure(self) -> dict[str, Any]:
        from envpool_bridge.envs.config import EnvConfig
        from jaxsrl.bench.pool import bench_pool

        env = EnvConfig(self.env, suite=self.suite)  # pyright: ignore[reportArgumentType]
        sizes = self.workers, self.envs_per_worker, self.seconds, self.lanes_per_worker, self.workers_per_lane
        return bench_pool(env, *sizes, rounds=self.rounds, busy=self.busy)


@dataclasses.dataclass(frozen=True)
class BenchTrain:
    """Train PPO on CartPole: env steps per second while learning, and wait times of each component.

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

    def measure(self) -> dict[str, Any]:
        from jaxsrl.bench.train import bench_train

        return bench_train(self.workers, self.num_envs, self.max_policy_lag, self.env_steps)


@dataclasses.dataclass(frozen=True)
class BenchPlans:
    """Train PPO on CartPole under every plan: speed, policy lag, idle learner, memory.

    Attributes:
        plans: names of plans; all of them by default.
        env_steps: length of each run.
        num_envs: environments in all.
        json: print one JSON object instead of a table.
    """

    plans: tuple[str, ...] = ()
    env_steps: int = 400_000
    num_envs: int = 128
    json: bool = False

    def measure(self) -> dict[str, Any]:
        from jaxsrl.bench.plans import bench_plans

        return {"plans": bench_plans(self.plans, self.env_steps, self.num_envs)}


@dataclasses.dataclass(frozen=True)
class BenchSleep:
    """Train on environments that sleep: throughput relative to rows / sleep, by worker processes and by rows.

    Attributes:
        milliseconds: of sleep per step.
        rows: environments in all.
        fewer_rows: further numbers of environments, to find the bottleneck.
        steps: concurrency of a worker's rows: "async" (all steps are started, then waited for) or "threads".
        awake: disable CPU idle states meanwhile, as --machine.disable-cpu-idle does.
        json: print one JSON object instead of a table.
    """

    milliseconds: float = 5.0
    rows: int = 256
    fewer_rows: tuple[int, ...] = (16, 32, 64, 128)
    steps: Literal["async", "threads"] = "async"
    awake: bool = False
    json: bool = False

    def measure(self) -> dict[str, Any]:
        from jaxsrl.bench.sleep import SleepBench, bench_sleep

        return bench_sleep(
            SleepBench(self.milliseconds, self.rows, self.fewer_rows, steps=self.steps, awake=self.awake)
        )


@dataclasses.dataclass(frozen=True)
class BenchScale:
    """Train on increasing numbers of environments that only sleep: how many one head serves before it is 10 % slower, and why.

    Attributes:
        size: of observations.
        milliseconds: of sleep per step.
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

    def measure(self) -> dict[str, Any]:
        from jaxsrl.bench.scale import bench_scale

        return bench_scale(self.size, self.milliseconds, self.rows, self.workers, self.seconds)


@dataclasses.dataclass(frozen=True)
class BenchStepTimes:
    """Step environments whose steps take different times: asynchronous lanes against lockstep.

    Attributes:
        rows: environments, one worker process each.
        least: minimum milliseconds per step.
        most: maximum milliseconds per step; each step is uniformly distributed.
        seconds: stepping time of each contender.
        json: print one JSON object instead of a table.
    """

    rows: int = 16
    least: float = 1.0
    most: float = 50.0
    seconds: float = 20.0
    json: bool = False

    def measure(self) -> dict[str, Any]:
        from jaxsrl.bench.step_times import bench_step_times

        return bench_step_times(self.rows, self.least, self.most, self.seconds)


@dataclasses.dataclass(frozen=True)
class BenchDevice:
    """Train PPO with environments on the device, against PureJaxRL's published program (and rejax, if installed).

    Attributes:
        num_envs: numbers of environments to measure.
        seconds: of measurement at each.
        json: print one JSON object instead of a table.
    """

    num_envs: tuple[int, ...] = (64, 512, 2048)
    seconds: float = 10.0
    json: bool = False

    def measure(self) -> dict[str, Any]:
        from jaxsrl.bench.device_only import bench_device_only

        return bench_device_only(self.num_envs, seconds=self.seconds)


@dataclasses.dataclass(frozen=True)
class BenchRecurrent:
    """Train PPO with and without recurrent cores on CartPole.

    Attributes:
        cores: to compare with a feed-forward network.
        num_envs: environments in all.
        env_steps: length of each run.
        json: print one JSON object instead of a table.
    """

    cores: tuple[CoreName, ...] = ("gru", "lstm")
    num_envs: int = 128
    env_steps: int = 300_000
    json: bool = False

    def measure(self) -> dict[str, Any]:
        from jaxsrl.bench.recurrent import bench_recurrent

        return bench_recurrent(self.cores, num_envs=self.num_envs, env_steps=self.env_steps)


@dataclasses.dataclass(frozen=True)
class BenchReplay:
    """Insert into replay buffers and draw from them: ours on device and host, flashbax, a numpy ring, Reverb.

    Attributes:
        sizes: of steps to measure.
        priority_exponent: 0 draws uniformly; larger values draw by priority.
        rounds: turns of each contender.
        seconds: of a turn.
        reverb_python: interpreter of a separate environment with dm-reverb; "" skips Reverb.
        json: print one JSON object instead of a table.
    """

    sizes: tuple[Literal["atari", "vector"], ...] = ("atari", "vector")
    priority_exponent: float = 0.0
    rounds: int = 5
    seconds: float = 0.5
    reverb_python: str = ""
    json: bool = False

    def measure(self) -> dict[str, Any]:
        from jaxsrl.bench.replay import bench_replay

        return bench_replay(self.sizes, self.priority_exponent, self.rounds, self.seconds, self.reverb_python)


@dataclasses.dataclass(frozen=True)
class BenchCluster:
    """Train PPO on CartPole with and without environment hosts of a local Ray cluster: the cost of the cluster.

    Attributes:
        hosts: environment hosts, each on its own node.
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

    def measure(self) -> dict[str, Any]:
        from jaxsrl.bench.cluster import bench_cluster

        return bench_cluster(self.hosts, self.workers, self.num_envs, self.env_steps, self.rounds)


@dataclasses.dataclass(frozen=True)
class BenchGuards:
    """Train PPO on CartPole with all guards and without any, in turns: cost of checks, supervision and finite updates.

    Attributes:
        workers: environment processes of each contender.
        num_envs: environments of each contender.
        rounds: turns of each, of one trajectory and its update.
        json: print one JSON object instead of a table.
    """

    workers: int = 2
    num_envs: int = 128
    rounds: int = 200
    json: bool = False

    def measure(self) -> dict[str, Any]:
        from jaxsrl.bench.guards import bench_guards

        return bench_guards(self.workers, self.num_envs, self.rounds)


@dataclasses.dataclass(frozen=True)
class BenchGpu:
    """Run the tests and benchmarks that need an accelerator and record them; without one, print that."""


BENCHMARKS: dict[str, type[Any]] = {
    "pool": BenchPool,
    "train": BenchTrain,
    "plans": BenchPlans,
    "sleep": BenchSleep,
    "scale": BenchScale,
    "step-times": BenchStepTimes,
    "device": BenchDevice,
    "recurrent": BenchRecurrent,
    "replay": BenchReplay,
    "cluster": BenchCluster,
    "guards": BenchGuards,
    "gpu": BenchGpu,
}
"""Benchmarks by name on the command line."""

Bench: Any = Annotated[
    Union[tuple(Annotated[kind, tyro.conf.subcommand(name)] for name, kind in BENCHMARKS.items())],  # noqa: UP007
    tyro.conf.arg(name=""),
]


@dataclasses.dataclass(frozen=True)
class BenchCommand:
    """Benchmarks, as ratios against named baselines in one run."""

    what: Bench  # pyright: ignore[reportInvalidTypeForm]

    def run(self) -> int:
        """Runs the benchmark and prints the result."""
        if isinstance(self.what, BenchGpu):
            from jaxsrl.bench.gpu import bench_gpu

            bench_gpu()
        else:
            validate_numbers(self.what)
            name = next(name for name, kind in BENCHMARKS.items() if kind is type(self.what))
            print_tables(self.what.measure(), self.what.json, f"bench {name}")
        return 0


def validate_numbers(bench: Benchmark) -> None:
    """Raises UserError if a flag's number is not finite or not positive; a few may be 0."""
    for name, value in vars(bench).items():
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, bool) or not isinstance(number, int | float):
                continue
            may_be_zero = name in _MAY_BE_ZERO
            if not math.isfinite(number) or number < 0 or (number == 0 and not may_be_zero):
                expected = "0 or more" if may_be_zero else "positive"
                raise UserError(f"--{name.replace('_', '-')} must be {expected}: got {number}")
