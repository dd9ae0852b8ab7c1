"""Benchmark of the number of environment rows that one head (acting and learning in one process) serves.

Rows sleep and cost nothing themselves, so that only the head is measured. Its speed for few rows sets the line. The answer is
the first size whose speed per row is 10 % lower. `run_module` runs this file in a process of its own for each size.
"""

import threading
import time
from typing import Any

import psutil

from envpool_bridge.errors import UserError
from jaxsrl.bench.processes import answer_settings, run_module
from jaxsrl.bench.sleep_rows import Size, sleeping_source

_STAYS = 0.9
_LIMIT_SECONDS = 600.0


def bench_scaling(
    size: Size = "cartpole",
    milliseconds: float = 20.0,
    rows: tuple[int, ...] = (64, 128, 256, 512, 1024, 2048, 4096),
    workers: int = 4,
    seconds: float = 8.0,
) -> dict[str, Any]:
    """Measures training on increasing numbers of environments that only sleep: how many one head serves, and its limit.

    Args:
        size: Size of observations.
        milliseconds: Milliseconds of sleep per step.
        rows: numbers of environments, in order; the first that is 10 % slower per row is the last to be measured.
        workers: environment processes.
        seconds: Seconds of each run.

    Returns:
        `sizes`, an entry per number of rows: env steps per second, ratios to the first size (`of_linear`) and to rows / sleep
        (`of_sleep`), busy shares, and cores of all threads and of each (`profile`). `departs_at`, the first below 0.9 of linear,
        or None; `limit`, the busiest part there; `stopped`, why larger sizes failed, or "".

    Raises:
        UserError: If a number of rows does not divide by the workers.
    """
    invalid = [number for number in rows if number % workers]
    if invalid or not rows:
        raise UserError(f"rows must divide by {workers} workers: got {invalid or 'none'}")
    settings = {"size": size, "milliseconds": milliseconds, "workers": workers}
    sizes: list[dict[str, Any]] = []
    stopped = ""
    for number in rows:
        try:
            run = {**settings, "rows": number, "seconds": seconds}
            measured = run_module("jaxsrl.bench.scaling", run, _LIMIT_SECONDS)
        except UserError as error:
            if sizes:
                stopped = str(error)  # for example no shared memory; smaller sizes still count
                break
            raise
        speed = measured["env_steps_per_second"]
        linear = sizes[0]["env_steps_per_second"] / sizes[0]["rows"] if sizes else speed / number
        ratios = {"of_linear": speed / number / linear, "of_sleep": speed * milliseconds / 1000 / number}
        sizes.append({"rows": number, **ratios, **measured})
        if ratios["of_linear"] < _STAYS:
            break
    last = sizes[-1]
    departs = last["of_linear"] < _STAYS
    busy = {"learning": last["learning_busy"], "acting": last["acting_busy"]}
    busy["cores"] = last["head_cores"] / last["cores"]
    return {
        **settings,
        "sizes": sizes,
        "departs_at": last["rows"] if departs else None,
        "limit": max(busy, key=busy.__getitem__) if departs else None,
        "stopped": stopped,
    }


def _measure(size: Size, milliseconds: float, rows: int, workers: int, seconds: float) -> dict[str, Any]:
    import os

    from agents.networks.config import NetworkConfig
    from agents.ppo import PPOConfig
    from jaxsrl.bench.train import measure_training

    rollout = 16
    updates = max(12, round(seconds / (rollout * milliseconds / 1000)))
    profile = _Profile()
    measured = measure_training(
        workers,
        rows,
        env_steps=updates * rollout * rows,
        env=sleeping_source(size, milliseconds),
        # An MLP for images too: the benchmark measures the transport of slots, not convolutions.
        network=NetworkConfig(torso="mlp", hidden_sizes=(64, 64)),
        agent=PPOConfig(num_epochs=1, num_minibatches=4),
        changes={"rollout_length": rollout, "pool.lanes_per_worker": 1},
    )
    cores_of = profile.stop()
    return {
        "env_steps_per_second": measured["env_steps_per_second"],
        "acting_busy": 1.0 - measured["wait_share_inference"],
        "learning_busy": 1.0 - measured["learner_idle_share"],
        "head_cores": sum(cores_of.values()),
        "cores": len(os.sched_getaffinity(0)),
        "profile": {name: round(cores, 3) for name, cores in sorted(cores_of.items(), key=lambda item: -item[1])},
    }


class _Profile:
    """Cores that each thread of this process uses, by name, from the kernel's accounts; those of jax's pools together."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._samples: list[tuple[float, dict[str, float]]] = []
        self._thread = threading.Thread(target=self._sample, name="profile", daemon=True)
        self._thread.start()

    def stop(self) -> dict[str, float]:
        """Returns the cores over the last third of the samples, after all compilation."""
        self._ended.set()
        self._thread.join()
        kept = self._samples[2 * len(self._samples) // 3 :] or self._samples
        (begin, first), (end, last) = kept[0], kept[-1]
        seconds = max(end - begin, 1e-9)
        return {
            name: (used - first.get(name, 0.0)) / seconds for name, used in last.items() if used > first.get(name, 0.0)
        }

    def _sample(self) -> None:
        while not self._ended.wait(0.5):
            self._samples.append((time.monotonic(), _seconds_by_thread()))


def _seconds_by_thread() -> dict[str, float]:
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    seconds: dict[str, float] = {}
    for thread in psutil.Process().threads():
        name = names.get(thread.id, "jax's threads")
        seconds[name] = seconds.get(name, 0.0) + thread.user_time + thread.system_time
    return seconds


if __name__ == "__main__":
    answer_settings(_measure)
