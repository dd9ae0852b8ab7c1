"""The `jaxsrl bench` command: every benchmark is a function whose parameters are the command's flags."""

import dataclasses
import functools
import importlib
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, get_args

import tyro

from envpool_bridge.errors import UserError
from jaxsrl.terminal.tables import print_tables

BenchmarkName = Literal[
    "pool",
    "train",
    "learn",
    "plans",
    "on-device",
    "cluster",
    "gpu",
]
BENCHMARKS: tuple[BenchmarkName, ...] = get_args(BenchmarkName)

_MAY_BE_ZERO = frozenset({"workers_per_lane", "competing_processes", "max_policy_lag"})


@dataclasses.dataclass(frozen=True)
class BenchCommand:
    """Measure ratios against named baselines in one run. Flags after the name are the benchmark's: NAME --help shows them.

    Attributes:
        name: Name of the benchmark. "pool" steps environments, "train" trains PPO, "learn" trains it to a return next to
            stable-baselines3, and "plans" trains it under every plan. "on-device" trains on JAX environments. "cluster"
            measures the cost of a Ray cluster. "gpu" runs the accelerator's tests.
        flags: Flags of the benchmark.
    """

    name: tyro.conf.Positional[BenchmarkName]
    flags: tyro.conf.Suppress[tuple[str, ...]] = ()

    def run(self) -> int:
        """Runs the benchmark and prints the result."""
        settings, as_json = self.parse_flags()
        validate_numbers(settings)
        result = load_benchmark(self.name)(**settings)
        if result is not None:
            print_tables(result, as_json, f"bench {self.name}")
        return 0

    def parse_flags(self) -> tuple[dict[str, Any], bool]:
        """Returns the benchmark's arguments, and whether to print JSON."""
        benchmark = load_benchmark(self.name)
        signature = inspect.signature(benchmark)

        @functools.wraps(benchmark)
        def collect(*args: Any, **kwargs: Any) -> dict[str, Any]:
            return signature.bind(*args, **kwargs).arguments

        def command(
            settings: Annotated[Any, tyro.conf.arg(name="", constructor=collect)], json: bool = False
        ) -> tuple[dict[str, Any], bool]:
            """Parses the flags.

            Args:
                settings: Settings of the benchmark.
                json: print one JSON object instead of a table.
            """
            return settings, json

        return tyro.cli(
            command,
            prog=f"jaxsrl bench {self.name}",
            description=(inspect.getdoc(benchmark) or "").partition("\n\nArgs:")[0],
            args=self.flags,
            config=(tyro.conf.OmitArgPrefixes,),
        )


def load_benchmark(name: BenchmarkName) -> Callable[..., dict[str, Any] | None]:
    """Returns the function of a benchmark, which measures it and returns JSON data; imports its module."""
    module = name.replace("-", "_")
    return getattr(importlib.import_module(f"jaxsrl.bench.{module}"), f"bench_{module}")


def validate_numbers(settings: Mapping[str, Any]) -> None:
    """Raises UserError if a flag's number is not finite or not positive; a few may be 0."""
    for name, value in settings.items():
        if dataclasses.is_dataclass(value):
            validate_numbers(vars(value))
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, bool) or not isinstance(number, int | float):
                continue
            may_be_zero = name in _MAY_BE_ZERO
            if not math.isfinite(number) or number < 0 or (number == 0 and not may_be_zero):
                expected = "0 or more" if may_be_zero else "positive"
                raise UserError(f"--{name.replace('_', '-')} must be {expected}: got {number}")
