"""Coordination of several learner processes: checkpoints of all rows, metrics at process 0, and a common stop."""

import contextlib
import json
import time
from collections.abc import Callable
from typing import Any

from envpool_bridge.errors import UserError
from jaxsrl.checkpoints.store import Arrays, Restored
from jaxsrl.cluster.learners.gate import MAY_DIFFER
from jaxsrl.cluster.learners.host_gather import broadcast, gather, pack, unpack
from jaxsrl.cluster.learners.processes import FailedLearnerError, LostLearnerError, Processes
from jaxsrl.cluster.learners.row_shards import merge_row_shards, row_arrays, row_shard
from jaxsrl.cluster.learners.shared_metrics import add_totals, merge_episodes, process_metrics, summable_totals
from jaxsrl.cluster.learners.stop_consensus import StopConsensus
from jaxsrl.config.run_config import RunConfig
from jaxsrl.config.serialization import differences
from jaxsrl.training.coordinator import Coordinator
from jaxsrl.training.trainable import Trainable

_IDENTITY, _CHECKPOINT, _METRICS = "jaxsrl/identity", "jaxsrl/checkpoint", "jaxsrl/metrics/"
_DIFFERENCES, _DECISION = "jaxsrl/differences/", "jaxsrl/decision/"


class ProcessCoordinator(Coordinator):
    """One of several learner processes. All of them call each method together, except `request_stop` and those of metrics.

    Attributes:
        processes: Processes of the run.
        consensus: Consensus on the update before which all stop.
    """

    is_alone = False

    def __init__(self, processes: Processes, config: RunConfig) -> None:
        self.is_main, self.wait_seconds = processes.is_main, config.distributed.wait_seconds
        self.consensus = StopConsensus(processes)
        self.processes, self._config = processes, config
        self._restores = self._decisions = 0
        self._sent_at = time.perf_counter()
        self._sent_updates: int | None = None
        self._sent_waits: dict[str, float] = {}

    @property
    def stopped_by(self) -> str:
        return self.consensus.stopped_by

    def validate_identity(self, identity: dict[str, Any]) -> None:
        processes, text = self.processes, json.dumps(identity, sort_keys=True)
        if processes.is_main:
            processes.send(_IDENTITY, text)
        lines = differences(json.loads(processes.wait_for(_IDENTITY)), json.loads(text))
        lines = [line for line in lines if not any(name in line.split(":")[0] for name in MAY_DIFFER)]
        processes.send(f"{_DIFFERENCES}{processes.process_id}", json.dumps(lines))
        every = [json.loads(processes.wait_for(f"{_DIFFERENCES}{each}")) for each in range(processes.num_processes)]
        if not any(every):
            return
        # All processes raise the same error: jax may report the end of one before the others have received its reason.
        self._wait_before_exit()
        listed = "\n".join(
            "\n  ".join(
                [f"process {process} was started with another experiment than process 0 (theirs -> its):", *lines]
            )
            for process, lines in enumerate(every)
            if lines
        )
        raise UserError(f"{listed}\nstart the same command at every process, but for --distributed.process-id")

    def request_stop(self, reason: str) -> bool:
        self.consensus.request_stop(reason)
        return True

    def decide(self, own: bool) -> bool:
        self._decisions += 1
        key = f"{_DECISION}{self._decisions}"
        if self.is_main:
            self.processes.send(key, json.dumps(own))
        return json.loads(self.processes.wait_for(key))

    def restore(self, restore: Callable[[], Restored | None]) -> Restored | None:
        self._restores += 1
        key = f"{_CHECKPOINT}/{self._restores}"
        if self.is_main:
            return self._restore_and_send(key, restore)
        answer = json.loads(self.processes.wait_for(key))
        if answer is None:
            return None
        if isinstance(answer, str):
            self._wait_before_exit()
            raise UserError(answer)
        step, length, metadata = answer
        return step, unpack(broadcast(None, length)), metadata, []

    def split_rows(self, arrays: Arrays) -> Arrays:
        return row_shard(arrays, self.processes.process_id, self.processes.num_processes)

    def merge_rows(self, arrays: Arrays) -> Arrays:
        return {**arrays, **merge_row_shards([unpack(data) for data in gather(pack(row_arrays(arrays)))])}

    def send_metrics(self, num_updates: int, trainable: Trainable) -> None:
        config, now = self._config, time.perf_counter()
        seconds = now - self._sent_at
        before = num_updates - 1 if self._sent_updates is None else self._sent_updates
        self._sent_updates = before
        if seconds < min(1.0, config.metrics.interval_seconds):
            return
        totals = trainable.totals()
        waits = {"slot": totals["learner/wait_seconds"], "barrier": totals["learner_process/barrier_wait_seconds"]}
        own_steps = (num_updates - before) * config.env_steps_per_update / self.processes.num_processes
        process = {
            "env_steps_per_second": own_steps / seconds,
            **{f"{name}_wait_fraction": (waits[name] - self._sent_waits.get(name, 0.0)) / seconds for name in waits},
        }
        message = {"episodes": trainable.episode_metrics(), "process": process, "totals": summable_totals(totals)}
        self.processes.send(f"{_METRICS}{self.processes.process_id}", json.dumps(message))
        self._sent_at, self._sent_updates, self._sent_waits = now, num_updates, waits

    def merge_totals(self, own: dict[str, float]) -> dict[str, float]:
        """Returns totals of all processes at process 0; those of the others are about a second old."""
        if not self.is_main:
            return own
        return add_totals(own, [sent.get("totals", {}) for process, sent in self._received().items() if process != 0])

    def merge_episodes(self, own: dict[str, float]) -> dict[str, float]:
        """Returns episode means of all processes at process 0, with the share of time that each process waited."""
        if not self.is_main:
            return own
        received = self._received()
        received[0] = {**received.get(0, {}), "episodes": own}
        return merge_episodes([one["episodes"] for one in received.values()]) | process_metrics(received)

    def _received(self) -> dict[int, dict[str, Any]]:
        return {int(process): json.loads(text) for process, text in self.processes.received(_METRICS).items()}

    def _restore_and_send(self, key: str, restore: Callable[[], Restored | None]) -> Restored | None:
        """Restores the newest checkpoint and sends it to the other processes, or the reason why it is rejected."""
        try:
            restored = restore()
        except UserError as error:
            self.processes.send(key, json.dumps(str(error)))
            self._wait_before_exit()
            raise
        if restored is None:
            self.processes.send(key, json.dumps(None))
            return None
        step, arrays, metadata, _ = restored
        data = pack(arrays)
        self.processes.send(key, json.dumps([step, len(data), metadata]))
        broadcast(data, len(data))
        return restored

    def _wait_before_exit(self) -> None:
        """Waits until every process has read why the run ends: jax aborts those that process 0 leaves behind."""
        with contextlib.suppress(LostLearnerError, FailedLearnerError):
            self.processes.wait_at_barrier()
