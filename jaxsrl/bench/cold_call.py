"""What a call of the policy takes after a pause: how fast a processor forgets what it does not use.

    python -m jaxsrl.bench.cold_call

A server of environments that wait for milliseconds makes every call after such a pause. While it pauses nothing else runs here, yet
on a machine whose caches are shared with others the program and its data have gone when the call comes.
"""

import statistics
import sys
import time
from collections.abc import Callable, Sequence

import jax
import numpy as np

from agents.catalog import AGENTS
from agents.networks.config import NetworkConfig
from agents.ppo_config import PPOConfig
from envpool_bridge.adapters.environment import EnvConfig
from envpool_bridge.slot_views import blank_window
from jaxsrl.inference.act import fetched, make_act, row_keys

_CALLS = 200


def microseconds_after(pauses: Sequence[float], rows: int = 16, calls: int = _CALLS) -> list[float]:
    """Median time of a call for CartPole's rows with an MLP 64x64, its results fetched, by the pause before it.

    Args:
        pauses: seconds. The processor is kept busy through them, so that it need not wake up.
        rows: acted for.
        calls: of each pause.
    """
    spec = EnvConfig().source().spec()
    agent = AGENTS["ppo"](PPOConfig(), spec, NetworkConfig())
    params = jax.jit(agent.init)(jax.random.key(0)).params
    act, state, keys = make_act(agent), agent.initial_agent_state(rows), row_keys(jax.random.key(1), range(rows))
    observation, is_first = blank_window(spec, rows)
    steps = np.zeros(rows, np.uint32)

    def call() -> None:
        fetched(act(params, observation, state, is_first, keys, steps)[:2])

    call()  # compiles
    return [statistics.median(_seconds(call, pause) for _ in range(calls)) * 1e6 for pause in pauses]


def _seconds(call: Callable[[], None], pause: float) -> float:
    end = time.perf_counter() + pause
    while (start := time.perf_counter()) < end:
        pass
    call()
    return time.perf_counter() - start


if __name__ == "__main__":
    asked = (0.0, 0.0005, 0.001, 0.002, 0.005, 0.02)
    for pause, found in zip(asked, microseconds_after(asked), strict=True):
        sys.stdout.write(f"after {pause * 1000:4.1f} ms: {found:6.0f} us\n")
