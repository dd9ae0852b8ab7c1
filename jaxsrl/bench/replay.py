"""Benchmark of insertion and sampling of replay on the device and on the host, against other replay buffers."""

import contextlib
import statistics
import time
from functools import partial
from typing import Any, Literal

import jax

from envpool_bridge.errors import UserError
from jaxsrl.bench.replay_sizes import ATARI, VECTOR, BenchSizes
from jaxsrl.bench.rivals.replay_buffers import RATES, Contender, installed_contenders
from jaxsrl.bench.rivals.replay_reverb import reverb_contender
from jaxsrl.bench.turns import median_ratio, take_turns

SizeName = Literal["atari", "vector"]
_SIZES: dict[SizeName, BenchSizes] = {"atari": ATARI, "vector": VECTOR}
_COLUMNS = {"insert": "insert_env_steps_per_second", "sample": "sample_windows_per_second"}
_FILL_SECONDS = 20.0
_PRIORITY_BYTES = 4  # a float32 for each window


def bench_replay(
    sizes: tuple[SizeName, ...] = ("atari", "vector"),
    priority_exponent: float = 0.0,
    rounds: int = 5,
    seconds: float = 0.5,
    reverb_python: str = "",
) -> dict[str, Any]:
    """Measures env steps inserted and windows drawn per second, by contenders in alternating turns, each filled before.

    Every contender stores the same arrays of a step: one frame or vector, action, reward, marks and version. Drawn windows count
    once they are ready: on the device, or in numpy arrays.

    Args:
        sizes: "atari": single frames 84x84, drawn with the 3 before them, batch 32; "vector": 17 numbers, batch 256.
        priority_exponent: 0 draws uniformly. Larger values draw by priority, and each draw sets the priorities of its windows.
        rounds: turns of each contender.
        seconds: Seconds of a turn.
        reverb_python: interpreter with dm-reverb, which needs older packages than ours; "" skips Reverb.

    Returns:
        A row for each size and contender. `insert_env_steps_per_second` and `sample_windows_per_second` are medians. The ratios of
        ours on the device and on the host are medians of the rounds' ratios. `bytes_per_env_step` is the contender's memory, and
        `theoretical_bytes_per_env_step` the size of the arrays themselves and of a priority, if used.

    Raises:
        UserError: `sizes` is empty.
    """
    if not sizes:
        raise UserError("expected at least one of `--sizes atari vector`: got none; name one")
    rows = {name: _rows(_SIZES[name], priority_exponent, rounds, seconds, reverb_python) for name in sizes}
    settings = {"priority_exponent": priority_exponent, "rounds": rounds, "platform": jax.default_backend()}
    return {**rows, **settings}


def _rows(
    sizes: BenchSizes, priority_exponent: float, rounds: int, seconds: float, reverb_python: str
) -> list[dict[str, Any]]:
    with contextlib.ExitStack() as stack:
        contenders = installed_contenders(sizes, priority_exponent)
        if reverb_python:
            contenders["reverb"] = stack.enter_context(reverb_contender(sizes, priority_exponent, reverb_python))
        for contender in contenders.values():
            _fill(contender, sizes)
        turns = {
            rate: {name: partial(getattr(one, rate), seconds) for name, one in contenders.items()} for rate in RATES
        }
        speeds = {rate: take_turns(turns[rate], rounds) for rate in RATES}
        theoretical = sizes.step_bytes + (_PRIORITY_BYTES if priority_exponent else 0)
        return [
            {
                "contender": name,
                **{_COLUMNS[rate]: statistics.median(speeds[rate][name]) for rate in RATES},
                **{
                    f"{rate}_ratio_of_{ours}": median_ratio(speeds[rate][ours], speeds[rate][name])
                    for rate in RATES
                    for ours in ("device", "host")
                },
                "bytes_per_env_step": contender.bytes_per_env_step(),
                "theoretical_bytes_per_env_step": theoretical,
            }
            for name, contender in contenders.items()
        ]


def _fill(contender: Contender, sizes: BenchSizes) -> None:
    """Inserts until the buffer is full, which also compiles all programs, or for 20 s."""
    deadline, left = time.perf_counter() + _FILL_SECONDS, sizes.capacity
    while left > 0 and time.perf_counter() < deadline:
        left -= contender.insert_some()
    contender.sample(0.0)
