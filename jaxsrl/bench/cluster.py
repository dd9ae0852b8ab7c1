"""What a cluster costs on one machine: the same training through Ray's environment hosts and without, in turns of one session."""

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
    """A Ray actor that sends what an environment host does: memory that stays its own."""

    def __init__(self, num_bytes: int) -> None:
        self._memory = np.ones(num_bytes, np.uint8)

    def next_slot(self) -> tuple[int, np.ndarray]:
        return 0, self._memory


def bench_cluster(
    hosts: int = 2, workers: int = 2, num_envs: int = 128, env_steps: int = 200_000, rounds: int = 2
) -> dict[str, Any]:
    """PPO on CartPole under `single_learner_coarse`, local and through hosts on a cluster that is started for it.

    Args:
        hosts: environment hosts, each on a node of its own.
        workers: environment processes in all; the same processes either way.
        num_envs: environments in all.
        env_steps: length of each run.
        rounds: turns of each contender.

    Returns:
        env steps per second of both (medians over rounds), their ratio, and for slots of two sizes the milliseconds and bytes
        per second from an actor to here; what asking a remote inference server takes (`cluster_inference`), and how fast samples
        come from replay on a node (`cluster_replay`).
    """
    speeds: dict[str, list[float]] = {"local": [], "ray": []}
    waits: list[float] = []
    cluster = LocalCluster(hosts, cores_per_node=workers + 1, object_store_bytes=1 << 30)  # one more for a server
    try:
        for _ in range(rounds):
            for contender, found in speeds.items():
                changes: dict[str, Any] = {"plan": "single_learner_coarse", "evaluation.episodes": 0}
                if contender == "ray":
                    changes |= {"cluster.address": "auto", "cluster.num_hosts": hosts}
                measured = bench_train(workers, num_envs, 1, env_steps, changes=changes)
                found.append(measured["env_steps_per_second"])
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
        **{f"{name}_slot_{what}": value for name, found in slots.items() for what, value in found.items()},
        **inference,
        **{f"replay_{kind}_{what}": value for kind, found in replay.items() for what, value in found.items()},
    }


def _transfer(num_bytes: int) -> dict[str, float]:
    """Returns a slot at a time from an actor of another node to this process: median of some calls."""
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
