"""Contenders of the pool's benchmark: bare processes, and other libraries' vector environments.

Each contender is a context manager that yields a `Stepper`. Packages that are not installed are skipped.
"""

import contextlib
import dataclasses
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from envpool_bridge.envs.config import EnvConfig
from jaxsrl.bench.processes import answering_processes, killed_at_exit, speed_of_all

Stepper = Callable[[float], float]
"""Steps for N seconds and returns env steps per second. A reset counts as a step, also if it is part of one (SAME_STEP)."""

# Runs as `python -c SCRIPT config count worker`, and answers each line, a number of seconds, with env steps per second.
_BARE = """
import json, random, sys, time
from envpool_bridge.envs.config import EnvConfig
config, count, worker = json.loads(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
source = EnvConfig(**config).source()
envs = [source.make_env() for _ in range(count)]
for index, env in enumerate(envs):
    env.reset(seed=worker * count + index)
space = envs[0].action_space
actions = [space.sample() for _ in range(997)]
ended = [False] * count
steps = [env.step for env in envs]
print("ready", flush=True)
for line in sys.stdin:
    done, place, start = 0, 0, time.perf_counter()
    end = start + float(line)
    while time.perf_counter() < end:
        for index in range(count):
            if ended[index]:
                envs[index].reset()
                ended[index] = False
            else:
                place = (place + 1) % 997
                _, _, terminated, truncated, _ = steps[index](actions[place])
                ended[index] = terminated or truncated
        done += count
    print(done / (time.perf_counter() - start), flush=True)
"""

_COMPETING = """
import os, sys
while os.getppid() == int(sys.argv[1]):
    for _ in range(1_000_000):
        pass
"""


@contextlib.contextmanager
def bare_processes(env: EnvConfig, workers: int, envs_per_worker: int) -> Iterator[Stepper]:
    """Yields processes that step their environments one by one without communication: the limit."""
    config = json.dumps(dataclasses.asdict(env))
    commands = [
        [sys.executable, "-P", "-c", _BARE, config, str(envs_per_worker), str(worker)] for worker in range(workers)
    ]
    with answering_processes(commands, f"a process of {env.id} alone") as processes:
        yield partial(speed_of_all, processes)


@contextlib.contextmanager
def run_competing_processes(count: int) -> Iterator[None]:
    """Runs competing processes that compute all the time until the exit of the context."""
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            process = subprocess.Popen([sys.executable, "-P", "-c", _COMPETING, str(os.getpid())])
            stack.enter_context(killed_at_exit(process))
        yield


@contextlib.contextmanager
def gymnasium_vector(make: Callable[[], VectorEnv]) -> Iterator[Stepper]:
    """Yields a vector environment that has Gymnasium's interface."""
    env = make()
    try:
        env.reset(seed=0)
        env.action_space.seed(0)
        actions = [env.action_space.sample() for _ in range(97)]
        same_step = env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
        yield partial(_step_for, env.step, actions, env.num_envs, count_resets=_count_ends if same_step else None)
    finally:
        env.close(terminate=True)  # without waiting for a step that Ctrl-C interrupted


def installed_rivals(
    make_env: Callable[[], gymnasium.Env], workers: int, total: int
) -> dict[str, contextlib.AbstractContextManager[Stepper]]:
    """Returns vector environments of other installed packages.

    Args:
        make_env: makes one environment.
        workers: processes of libraries that put several environments into one.
        total: environments in all.
    """
    rivals: dict[str, contextlib.AbstractContextManager[Stepper]] = {}
    if importlib.util.find_spec("stable_baselines3") is not None:
        rivals["subproc_vec_env"] = _subproc_vec_env(make_env, total)
    if importlib.util.find_spec("pufferlib") is not None:
        rivals["pufferlib"] = _pufferlib(make_env, workers, total)
    return rivals


@contextlib.contextmanager
def _subproc_vec_env(make_env: Callable[[], gymnasium.Env], total: int) -> Iterator[Stepper]:
    """Yields stable-baselines3's SubprocVecEnv: a process per environment, and pickles through pipes."""
    from stable_baselines3.common.vec_env import SubprocVecEnv  # pyright: ignore[reportMissingImports]

    # As AsyncVectorEnv starts its processes; its own default would import torch in each.
    env = SubprocVecEnv([make_env] * total, start_method="fork")
    try:
        env.reset()
        env.action_space.seed(0)
        actions = [[env.action_space.sample() for _ in range(total)] for _ in range(97)]
        yield partial(_step_for, env.step, actions, total, count_resets=lambda step: int(np.count_nonzero(step[2])))
    finally:
        env.close()


@contextlib.contextmanager
def _pufferlib(make_env: Callable[[], gymnasium.Env], workers: int, total: int) -> Iterator[Stepper]:
    """Yields PufferLib's Multiprocessing: `workers` processes, shared memory, spinning waits, all rows in one batch."""
    import pufferlib.emulation  # pyright: ignore[reportMissingImports]
    import pufferlib.vector  # pyright: ignore[reportMissingImports]

    make: Any = partial(pufferlib.emulation.GymnasiumPufferEnv, env_creator=make_env)
    backend = pufferlib.vector.Multiprocessing
    # overwork: virtual machines count hyper-threads as no cores.
    env = pufferlib.vector.make(make, num_envs=total, num_workers=workers, backend=backend, overwork=True)
    try:
        env.reset()
        env.action_space.seed(0)
        actions = [env.action_space.sample() for _ in range(97)]

        def step(seconds: float) -> float:
            _signal(env.processes, signal.SIGCONT)
            speed = _step_for(env.step, actions, total, seconds)
            # Its idle workers spin for half a second, which would be in the next contender's turn.
            _signal(env.processes, signal.SIGSTOP)
            return speed

        yield step
    finally:
        _signal(env.processes, signal.SIGCONT)
        env.close()


def _signal(processes: list[Any], number: signal.Signals) -> None:
    for process in processes:
        os.kill(process.pid, number)


def _count_ends(step: tuple[Any, ...]) -> int:
    return int(np.count_nonzero(step[2] | step[3]))


def _step_for(
    step: Callable[[Any], Any],
    actions: list[Any],
    num_envs: int,
    seconds: float,
    count_resets: Callable[[Any], int] | None = None,
) -> float:
    """Steps for some seconds; returns env steps per second.

    Args:
        step: steps all environments.
        actions: taken in turn.
        num_envs: environments in a step.
        seconds: Seconds to step.
        count_resets: returns the number of resets that were part of a step, from its result; None for none.
    """
    turns, resets, start = 0, 0, time.perf_counter()
    end = start + seconds
    while time.perf_counter() < end:
        result = step(actions[turns % len(actions)])
        turns += 1
        if count_resets is not None:
            resets += count_resets(result)
    return (turns * num_envs + resets) / (time.perf_counter() - start)
