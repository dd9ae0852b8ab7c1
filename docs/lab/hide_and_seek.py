"""Benchmark of hide-and-seek: steps a second, their parts, and scaling. Run: python docs/lab/hide_and_seek.py --seconds 20.

One process steps one environment with random actions, resets included, against the 257 env steps/s that the original code did
(2 against 2 on random walls, one process, through a shim of its old MuJoCo bindings, on a machine of two shared cores). The
planar engine steps 32 environments in turn with it. The pool's two workers are compared, in turns of the same run, with twice
one worker, and with two bare processes at the same time.
"""

import contextlib
import dataclasses
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.envs.protocol import GymnasiumReset, first_rows, step_rows
from envpool_bridge.envs.suites.hide_and_seek import GAMES
from envpool_bridge.pool import EnvPool, PoolOptions
from envpool_bridge.shm.layout import PoolShape, make_layout
from envpool_bridge.shm.slots import allocate_slots
from envpool_bridge.spec.tree import write
from jaxsrl.bench.processes import answering_processes, speed_of_all
from jaxsrl.bench.random_actions import random_actions

ORIGINAL_STEPS_PER_SECOND = 257.0
_ENVS_PER_WORKER, _LANES_PER_WORKER, _ROLLOUT_LENGTH, _NUM_SLOTS = 4, 2, 32, 3
_BARE = f"import runpy; runpy.run_path({__file__!r})['answer']({{game!r}}, {{seed}})"


class _Bare:
    """One environment, stepped with random actions for so many seconds at a time."""

    def __init__(self, game: str, seed: int) -> None:
        from envpool_bridge.envs.hide_and_seek.env import HideAndSeek

        self.env = HideAndSeek(GAMES[game]())
        self.env.reset(seed=seed)
        self._actions = np.random.default_rng(seed).integers(0, (11, 11, 11, 2, 2), (997, 4, 5))
        self._place = 0

    def run(self, seconds: float) -> tuple[float, float]:
        """Env steps a second, of the clock and of the processor."""
        env, done, start, busy = self.env, 0, time.perf_counter(), time.process_time()
        while time.perf_counter() - start < seconds:
            if not env.agents:
                env.reset()
            self._place = (self._place + 1) % len(self._actions)
            env.step(dict(zip(env.agents, self._actions[self._place], strict=True)))
            done += 1
        return done / (time.perf_counter() - start), done / (time.process_time() - busy)


class _Planar:
    """Environments of the planar engine, stepped as a worker of the pool steps them."""

    def __init__(self, game: str, envs: int = 32) -> None:
        source = EnvConfig(game, "hide_and_seek", '{"engine": "planar"}').source()
        spec = source.spec()
        self._envs, count = envs, envs * spec.rows_per_env
        self._slot = allocate_slots(make_layout(spec, PoolShape(1, 1, 1, count, 1, 1), {}))[0]
        self._rows = source.make_rows(range(count), 0, False)
        self._rows.reset(GymnasiumReset(tuple(range(count))), first_rows(self._slot))
        self._actions = random_actions(spec, count)
        self._place = 0

    def run(self, seconds: float) -> tuple[float, float]:
        """Env steps a second, of the clock and of the processor."""
        out, done, start, busy = step_rows(self._slot, 0), 0, time.perf_counter(), time.process_time()
        while time.perf_counter() - start < seconds:
            self._place = (self._place + 1) % len(self._actions)
            self._rows.step(self._actions[self._place], out)
            done += self._envs
        return done / (time.perf_counter() - start), done / (time.process_time() - busy)


def bench_hide_and_seek(game: str, seconds: float, rounds: int = 5) -> dict[str, Any]:
    """Medians over rounds, of `seconds` in all for each contender; ratios are medians of the rounds' ratios."""
    bare, planar = _Bare(game, 0), _Planar(game)
    bare.run(0.5)
    planar.run(0.5)
    each = seconds / rounds
    alone: list[tuple[float, float]] = []
    of_planar: list[tuple[float, float]] = []
    parallel: dict[str, list[float]] = {"pool_1": [], "pool_2": [], "bare_1": [], "bare_2": []}
    with contextlib.ExitStack() as stack:
        contenders = {f"pool_{n}": stack.enter_context(_pool(game, n)) for n in (1, 2)}
        contenders |= {f"bare_{n}": stack.enter_context(_bare_processes(game, n)) for n in (1, 2)}
        for _ in range(rounds):
            alone.append(bare.run(each))
            of_planar.append(planar.run(each))
            for name, run in contenders.items():
                parallel[name].append(run(each))

    def ratio(above: str, below: str, factor: float = 1.0) -> float:
        return statistics.median(a / (factor * b) for a, b in zip(parallel[above], parallel[below], strict=True))

    speed, per_processor_second = (statistics.median(values) for values in zip(*alone, strict=True))
    planar_speed, planar_per_processor_second = (statistics.median(values) for values in zip(*of_planar, strict=True))
    return {
        "game": game,
        "env_steps_per_second": speed,
        "env_steps_per_processor_second": per_processor_second,
        "planar_env_steps_per_second": planar_speed,
        "planar_env_steps_per_processor_second": planar_per_processor_second,
        "planar_ratio": statistics.median(b[1] / a[1] for a, b in zip(alone, of_planar, strict=True)),
        "load": os.getloadavg()[0],
        "ratio_to_original": speed / ORIGINAL_STEPS_PER_SECOND,
        "shares_of_a_step": _shares(bare, each),
        **{f"{name}_env_steps_per_second": statistics.median(values) for name, values in parallel.items()},
        "pool_scaling": ratio("pool_2", "pool_1", 2.0),
        "pool_ratio_to_bare_processes": ratio("pool_2", "bare_2"),
        "bare_scaling": ratio("bare_2", "bare_1", 2.0),
    }


def answer(game: str, seed: int) -> None:
    """Answers each line of the standard input, so many seconds, with env steps per second."""
    bare = _Bare(game, seed)
    print("ready", flush=True)  # noqa: T201
    for line in sys.stdin:
        print(bare.run(float(line))[0], flush=True)  # noqa: T201


def _shares(bare: _Bare, seconds: float) -> dict[str, float]:
    """Parts of the time of stepping, by putting a clock around what an episode calls."""
    spent: dict[str, float] = {}
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        bare.env.reset()
        episode: Any = bare.env.episode
        object.__setattr__(episode.scene, "advance", _clocked("physics", episode.scene.advance, spent))
        episode._vision.compute = _clocked("sight and lidar", episode._vision.compute, spent)
        episode._use_hands = _clocked("grips and locks", episode._use_hands, spent)
        episode.observe = _clocked("observations", episode.observe, spent)
        step = _clocked("step", bare.env.step, spent)
        while bare.env.agents and time.perf_counter() - start < seconds:
            step(dict.fromkeys(bare.env.agents, bare._actions[bare.env.episode.num_steps][0]))
    total = spent.pop("step")
    return {**{name: value / total for name, value in spent.items()}, "the rest": 1 - sum(spent.values()) / total}


def _clocked(name: str, function: Callable[..., Any], spent: dict[str, float]) -> Callable[..., Any]:
    def clocked(*args: Any) -> Any:
        start = time.perf_counter()
        result = function(*args)
        spent[name] = spent.get(name, 0.0) + time.perf_counter() - start
        return result

    return clocked


@contextlib.contextmanager
def _bare_processes(game: str, count: int) -> Iterator[Callable[[float], float]]:
    commands = [[sys.executable, "-c", _BARE.format(game=game, seed=seed)] for seed in range(count)]
    with answering_processes(commands, f"a process of {game} alone") as processes:
        speed_of_all(processes, 0.3)
        yield partial(speed_of_all, processes)


@contextlib.contextmanager
def _pool(game: str, workers: int) -> Iterator[Callable[[float], float]]:
    source = EnvConfig(game, "hide_and_seek").source()
    spec = source.spec()
    # Lanes as training has them: no worker waits for another, whose episode may be in its reset of 7 ms.
    rows = _ENVS_PER_WORKER // _LANES_PER_WORKER * spec.rows_per_env
    shape = PoolShape(workers, _LANES_PER_WORKER, 1, rows, _ROLLOUT_LENGTH, _NUM_SLOTS)
    actions = random_actions(spec, shape.rows_per_lane)
    with EnvPool(source, shape, PoolOptions(cores=tuple(range(workers))), spec=spec) as pool:
        parts = [range(part.start, part.stop) for part in map(shape.part_rows, range(shape.num_parts))]
        pool.start([GymnasiumReset(tuple(part)) for part in parts])

        def run(seconds: float) -> float:
            done, turn, start = 0, 0, time.perf_counter()
            while time.perf_counter() - start < seconds:
                if (full := pool.acquire(0.0)) is not None:
                    pool.release(full)
                for lane in pool.wait_ready(1.0):
                    turn += 1
                    write(pool.next_action(lane), actions[turn % len(actions)])
                    pool.post_actions(lane)
                    done += shape.rows_per_lane // spec.rows_per_env
            return done / (time.perf_counter() - start)

        run(0.5)
        yield run


@dataclasses.dataclass(frozen=True)
class _Flags:
    game: str = "randomwalls"
    seconds: float = 20.0


if __name__ == "__main__":
    import tyro

    flags = tyro.cli(_Flags, description=__doc__)
    print(json.dumps(bench_hide_and_seek(flags.game, flags.seconds), indent=2))  # noqa: T201
