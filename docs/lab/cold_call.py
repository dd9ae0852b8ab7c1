"""Duration of a policy call after a pause, with asynchronous and with synchronous CPU dispatch (`use_synchronous_cpu_dispatch`).

    python docs/lab/cold_call.py

A server of environments that wait for milliseconds makes every call after such a pause. While it pauses the other cores sleep, and
so do jax's threads: to wake one takes longer than the call. If its own core sleeps too, caches are cold when it wakes.
"""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

import jax
import numpy as np

from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig, make_ppo
from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.shm.slots import blank_window
from jaxsrl.collect.inference.act import fetch, make_act, row_keys
from jaxsrl.machine.cpu_dispatch import use_synchronous_cpu_dispatch

_CALLS = 200
_PAUSES = (0.0, 0.001, 0.005, 0.02)
_WAYS = ("handed over", "inline")
_LIMIT_SECONDS = 120.0


def microseconds_after(pauses: Sequence[float], asleep: bool, rows: int = 16, calls: int = _CALLS) -> list[float]:
    """Median time of a call for CartPole's rows with an MLP 64x64, its results fetched, by the pause before it.

    Args:
        pauses: seconds.
        asleep: whether the thread sleeps through them; it keeps its core busy otherwise.
        rows: acted for.
        calls: Calls of each pause.
    """
    spec = EnvConfig().source().spec()
    agent = make_ppo(PPOConfig(), spec, NetworkConfig())
    params = jax.jit(agent.init)(jax.random.key(0)).params
    act, state, keys = make_act(agent), agent.initial_agent_state(rows), row_keys(jax.random.key(1), range(rows))
    observation, is_first = blank_window(spec, rows)
    steps = np.zeros(rows, np.uint32)

    def call() -> None:
        fetch(act(params, observation, state, is_first, keys, steps)[:2])

    call()  # compiles
    return [statistics.median(_seconds(call, pause, asleep) for _ in range(calls)) * 1e6 for pause in pauses]


def _seconds(call: Callable[[], None], pause: float, asleep: bool) -> float:
    end = time.perf_counter() + pause
    if asleep and pause:
        time.sleep(pause)
    while (start := time.perf_counter()) < end:
        pass
    call()
    return time.perf_counter() - start


def _print_all() -> None:
    """A table; jax decides once in a process how it runs programs, so that each way has one."""
    for way in _WAYS:
        subprocess.run([sys.executable, __file__, way], check=True, timeout=_LIMIT_SECONDS)


def _print_one(way: str) -> None:
    if way == "inline":
        use_synchronous_cpu_dispatch()
    for pausing in ("awake", "asleep"):
        found = zip(_PAUSES, microseconds_after(_PAUSES, pausing == "asleep"), strict=True)
        columns = [f"{took:4.0f} us after {pause * 1000:2g} ms" for pause, took in found]
        sys.stdout.write(f"{way:12}{pausing:8}{', '.join(columns)}\n")


if __name__ == "__main__":
    _print_one(sys.argv[1]) if sys.argv[1:] else _print_all()
