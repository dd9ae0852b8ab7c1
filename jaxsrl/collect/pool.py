"""Collector with environment processes: one or several pools, each with an inference server in a thread."""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import jax
import numpy as np

from agents.api import Params
from envpool_bridge.envs.protocol import EpisodeReset
from envpool_bridge.pool import EnvPool
from envpool_bridge.shm.slots import SlotViews
from envpool_bridge.spec.encoding import concatenated
from envpool_bridge.spec.tree import Tree, take
from jaxsrl.collect.collector import CollectorConfig, describe_lanes, open_pool, split_reset, supervision_metrics
from jaxsrl.collect.inference.act import make_act, row_keys, take_rows
from jaxsrl.collect.inference.server import InferenceServer
from jaxsrl.collect.params.store import ParamsStore
from jaxsrl.machine.devices import Device, on_device
from jaxsrl.machine.lifecycle import Lifecycle

_WAIT_SECONDS = 0.2


class PoolCollector:
    """Replicas of a pool, which split the rows in order, with one batched inference server each.

    A slot of the run is full when it is full in every replica.
    The constructor reserves memory and starts to launch the workers.

    Args:
        config: arguments of every collector.
        devices: devices that act, one per replica of the plan.
        lifecycle: lifecycle of the inference threads.
        replicas: replicas of the plan that this collector serves; None for all.
    """

    def __init__(
        self,
        config: CollectorConfig,
        devices: Sequence[Device],
        lifecycle: Lifecycle,
        replicas: range | None = None,
    ) -> None:
        plan, first_sequence = config.plan, config.first_sequence
        self._plan, self._lifecycle, self._first = plan, lifecycle, first_sequence
        self._replicas = range(plan.environments.replicas) if replicas is None else replicas
        self._devices = devices
        self._pools: list[EnvPool] = []
        self._servers: list[InferenceServer] = []
        self._stores = {devices[replica]: ParamsStore(plan.max_policy_lag) for replica in self._replicas}
        self._leased = [first_sequence] * len(self._replicas)  # next sequence of each pool
        self._newest: Params | None = None
        # Servers share it, so that it is traced once for all replicas.
        self._act = make_act(config.agent, platform=devices[0].platform)
        try:
            for replica in self._replicas:
                self._add_replica(config, replica, devices[replica])
        except BaseException:
            self.close()
            raise

    def _add_replica(self, config: CollectorConfig, replica: int, device: Device) -> None:
        saved, num_rows = config.agent_state, self._plan.shape.num_rows
        first_row = replica * num_rows
        pool = open_pool(config, replica)
        self._pools.append(pool)
        self._servers.append(
            InferenceServer(
                pool,
                config.agent,
                self._stores[device],
                row_keys(jax.device_put(config.act_key, device), range(first_row, first_row + num_rows)),
                device,
                self._plan.merge_lanes,
                None if saved is None else take_rows(saved, slice(first_row, first_row + num_rows)),
                self._act,
            )
        )

    def publish(self, version: int, params: Params) -> None:
        """Sends the parameters to every device that acts and wakes the servers."""
        self._newest = params
        for device, store in self._stores.items():
            store.publish(version, on_device(params, device))
        for pool in self._pools:
            pool.wake()

    def start(self, reset: EpisodeReset) -> None:
        """Starts workers and inference threads. All servers compile in parallel before."""
        shape = self._plan.shape
        for replica, pool in zip(self._replicas, self._pools, strict=True):
            pool.start(split_reset(reset, shape, replica * shape.num_rows))
        params = [on_device(self._newest, self._devices[replica]) for replica in self._replicas]
        with ThreadPoolExecutor(len(self._servers), "warm up") as threads:
            list(threads.map(InferenceServer.warm_up, self._servers, params))  # raises their first error
        for replica, server in zip(self._replicas, self._servers, strict=True):
            self._lifecycle.start_thread(f"inference {replica}", partial(server.run, self._lifecycle.should_stop))

    def acquire(self, timeout_seconds: float) -> int | None:
        """Returns the next sequence that is full in every pool, or None; raises the errors of environments."""
        deadline = time.monotonic() + timeout_seconds
        sequence = min(self._leased)
        for index, pool in enumerate(self._pools):
            if self._leased[index] > sequence:
                continue
            if pool.acquire(max(0.0, deadline - time.monotonic())) is None:
                for other in self._pools:
                    other.check()
                return None
            self._leased[index] += 1
        return sequence

    def slots(self, sequence: int) -> list[SlotViews]:
        """Returns the leased slots, in shared memory."""
        return [pool.views[sequence % self._plan.shape.num_slots] for pool in self._pools]

    def slot_memory(self, sequence: int) -> np.ndarray:
        """Returns the memory of the only pool's leased slot, [slot_bytes] uint8, to send it as a whole."""
        (pool,) = self._pools
        return pool.slot_memory(sequence)

    def release(self, sequence: int) -> None:
        """Returns the slots to the environments."""
        for pool in self._pools:
            pool.release(sequence)

    def drop(self, sequence: int) -> None:
        """Returns a leased sequence without an update."""
        for store in self._stores.values():
            store.drop_sequence()
        self.release(sequence)
        for pool in self._pools:
            pool.wake()

    def set_stage(self, stage: int) -> None:
        for pool in self._pools:
            pool.set_stage(stage)

    def acquire_replica(self, index: int, timeout_seconds: float) -> int | None:
        """Acquires a slot of one replica, like `acquire`. Thread-safety: one thread per replica."""
        if self._pools[index].acquire(timeout_seconds) is None:
            return None
        self._leased[index] += 1
        return self._leased[index] - 1

    def replica_slot(self, index: int, sequence: int) -> SlotViews:
        """Returns the leased slot of one replica."""
        return self._pools[index].views[sequence % self._plan.shape.num_slots]

    def release_replica(self, index: int, sequence: int) -> None:
        """Returns the slot of one replica to its environments."""
        self._pools[index].release(sequence)

    def first_observation(self, should_stop: Callable[[], bool]) -> Tree | None:
        """Returns a copy of the first slots' first observations after every worker has written them."""
        for pool in self._pools:
            while not pool.wait_started(_WAIT_SECONDS):
                if should_stop():
                    return None
        return concatenated([take(slot.observation, 0) for slot in self.slots(self._first)])

    def totals(self) -> Mapping[str, float]:
        """Returns seconds waited and calls made; seconds are means over workers, servers and pools."""
        pools, stats = len(self._pools), [server.stats for server in self._servers]
        workers = self._plan.shape.num_workers * pools
        return {
            "env/wait_seconds": sum(pool.env_wait_seconds for pool in self._pools) / workers,
            "inference/wait_seconds": sum(pool.inference_wait_seconds for pool in self._pools) / pools,
            "learner/wait_seconds": sum(pool.learner_wait_seconds for pool in self._pools),
            "inference/busy_seconds": sum(stat.busy_seconds for stat in stats) / pools,
            "inference/calls": float(sum(stat.calls for stat in stats)),
            "inference/rows": float(sum(stat.rows for stat in stats)),
            **supervision_metrics([pool.supervision for pool in self._pools]),
        }

    def waits(self) -> list[str]:
        return [
            describe_lanes(pool, self._stores[self._devices[replica]].missing, f"inference server {replica}")
            for replica, pool in zip(self._replicas, self._pools, strict=True)
        ]

    def close(self) -> None:
        """Stops the workers; the inference threads must have stopped."""
        for pool in self._pools:
            pool.close()
