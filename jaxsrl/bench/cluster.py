"""Benchmark of the cost of a cluster on one machine: the same training with and without Ray's environment hosts, in turns."""

import statistics
import time
from functools import partial
from typing import Any

from jaxsrl.bench.cluster_inference import measure_inference
from jaxsrl.bench.cluster_replay import SlotSender, measure_replay
from jaxsrl.bench.train import measure_training
from jaxsrl.bench.turns import take_turns
from jaxsrl.cluster.ray.engine import RayEngine, import_ray
from jaxsrl.cluster.ray.local_cluster import LocalCluster

_SLOT_BYTES = {"cartpole": 76_000, "atari": 32 * 64 * 84 * 84}  # 32 steps of 64 rows; frames of Atari are 7,056 bytes
_CALLS = 30
_ANSWER_SECONDS = 120.0


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
    local = {"plan": "single_learner_coarse", "eval.final_episodes": 0}
    changes = {"local": local, "ray": {**local, "cluster.address": "auto", "cluster.num_hosts": hosts}}
    train = partial(measure_training, workers, num_envs, 1, env_steps)
    cluster = LocalCluster(hosts, cores_per_node=workers + 1, object_store_bytes=1 << 30)  # one more for a server
    try:
        runs = take_turns({name: partial(train, changes=changes[name]) for name in changes}, rounds)
        slots = {name: _transfer(size) for name, size in _SLOT_BYTES.items()}
        inference = measure_inference()
        replay = {kind: measure_replay(kind) for kind in ("vector", "atari")}
    finally:
        cluster.close()
    speeds = {name: statistics.median(run["env_steps_per_second"] for run in runs[name]) for name in runs}
    return {
        "hosts": hosts,
        "workers": workers,
        "num_envs": num_envs,
        "rounds": rounds,
        **{f"{name}_env_steps_per_second": speed for name, speed in speeds.items()},
        "ray_over_local": speeds["ray"] / speeds["local"],
        "ray_learner_idle_share": statistics.median(run["learner_idle_share"] for run in runs["ray"]),
        **{f"{name}_slot_{key}": value for name, entry in slots.items() for key, value in entry.items()},
        **inference,
        **{f"replay_{kind}_{key}": value for kind, entry in replay.items() for key, value in entry.items()},
    }


def _transfer(num_bytes: int) -> dict[str, float]:
    """Returns bytes, milliseconds and bytes per second of slots from an actor on another node: medians over calls."""
    ray = import_ray()
    engine = RayEngine()
    actor: Any = ray.remote(num_cpus=1)(SlotSender).remote(num_bytes)
    try:
        ray.get(actor.next_slot.remote(), timeout=_ANSWER_SECONDS)
        seconds: list[float] = []
        for _ in range(_CALLS):
            start = time.perf_counter()
            call = actor.next_slot.remote()
            if not engine.wait([call], _ANSWER_SECONDS):
                raise TimeoutError(
                    f"an actor failed: expected a slot of {num_bytes:,} bytes within {_ANSWER_SECONDS:g} s"
                )
            _, memory = engine.get(call)
            seconds.append(time.perf_counter() - start)
            del memory
    finally:
        ray.kill(actor)
    median = statistics.median(seconds)
    return {"bytes": float(num_bytes), "milliseconds": median * 1e3, "bytes_per_second": num_bytes / median}
