"""Benchmark of the cost of a cluster on one machine: the same training with and without Ray's environment hosts, in turns."""

import statistics
import time
from typing import Any

import numpy as np

from jaxsrl.bench.cluster_inference import measure_inference
from jaxsrl.bench.cluster_replay import measure_replay
from jaxsrl.bench.train import bench_train
from jaxsrl.cluster.ray.engine import RayEngine, import_ray
from jaxsrl.cluster.ray.local_cluster import LocalCluster

_SLOT_BYTES = {"cartpole": 76_000, "atari": 32 * 64 * 84 * 84}  # 32 steps of 64 rows; frames of Atari are 7,056 bytes
_CALLS = 30
_ANSWER_SECONDS = 120.0


class _Sender:
    """A Ray actor that sends memory of its own, as an environment host does."""

    def __init__(self, num_bytes: int) -> None:
        self._memory = np.ones(num_bytes, np.uint8)

    def next_slot(self) -> tuple[int, np.ndarray]:
        return 0, self._memory


def bench_cluster(
    hosts: int = 2, workers: int = 2, num_envs: int = 128, env_steps: int = 200_000, rounds: int = 2
) -> dict[str, Any]:
    """Measures PPO on CartPole under `single_learner_coarse`, locally and through hosts of a cluster started for it.

    Args:
        hosts: environment hosts, each on its own node.
        workers: environment processes in all, the same number either way.
        num_envs: environments in all.
        env_steps: length of each run.
        rounds: turns of each contender.

    Returns:
        Env steps per second of both (medians over rounds) and their ratio. For slots of two sizes, milliseconds and bytes per
        second from an actor to this process. Also the results of `cluster_inference` and `cluster_replay`.
    """
    speeds: dict[str, list[float]] = {"local": [], "ray": []}
    waits: list[float] = []
    cluster = LocalCluster(hosts, cores_per_node=workers + 1, object_store_bytes=1 << 30)  # one more for a server
    try:
        for _ in range(rounds):
            for contender, contender_speeds in speeds.items():
                changes: dict[str, Any] = {"plan": "single_learner_coarse", "evaluation.episodes": 0}
                if contender == "ray":
                    changes |= {"cluster.address": "auto", "cluster.num_hosts": hosts}
                measured = bench_train(workers, num_envs, 1, env_steps, changes=changes)
                contender_speeds.append(measured["env_steps_per_second"])
                if contender == "ray":
                    waits.append(measured["learner_idle_share"])
        slots = {name: _transfer(size) for name, size in _SLOT_BYTES.items()}
        inference = measure_inference()
        replay = {kind: measure_replay(kind) for kind in ("vector", "atari")}
    finally:
        cluster.close()
    local, through_ray = (statistics.median(speeds[name]) for name in ("local", "ray"))
    return {
        "hosts": hosts,
        "workers": workers,
        "num_envs": num_envs,
        "rounds": rounds,
        "local_env_steps_per_second": local,
        "ray_env_steps_per_second": through_ray,
        "ray_over_local": through_ray / local,
        "ray_learner_idle_share": statistics.median(waits),
        **{f"{name}_slot_{key}": value for name, entry in slots.items() for key, value in entry.items()},
        **inference,
        **{f"replay_{kind}_{key}": value for kind, entry in replay.items() for key, value in entry.items()},
    }


def _transfer(num_bytes: int) -> dict[str, float]:
    """Returns bytes, milliseconds and bytes per second of slots from an actor on another node: medians over calls."""
    ray = import_ray()
    engine = RayEngine()
    actor: Any = ray.remote(num_cpus=1)(_Sender).remote(num_bytes)
    try:
        ray.get(actor.next_slot.remote(), timeout=120.0)
        seconds: list[float] = []
        for _ in range(_CALLS):
            begin = time.perf_counter()
            call = actor.next_slot.remote()
            if not engine.wait([call], _ANSWER_SECONDS):
                raise TimeoutError(
                    f"an actor failed: expected a slot of {num_bytes:,} bytes within {_ANSWER_SECONDS:g} s"
                )
            _, memory = engine.get(call)
            seconds.append(time.perf_counter() - begin)
            del memory
    finally:
        ray.kill(actor)
    median = statistics.median(seconds)
    return {"bytes": float(num_bytes), "milliseconds": median * 1e3, "bytes_per_second": num_bytes / median}
