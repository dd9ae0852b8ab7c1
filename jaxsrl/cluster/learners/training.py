"""Training in several learner processes: as `HostTraining`, with what must be shared between them."""

import contextlib
import dataclasses
import json
import sys
import time

import jax
import numpy as np

from agents.api import LearnerState
from envpool_bridge.errors import UserError
from envpool_bridge.spec.tree import Tree, map_leaves
from envpool_bridge.supervisor.processes import pickle_source
from jaxsrl.checkpoints.store import Arrays, Restored, ValidateFn
from jaxsrl.cluster.hosts.source import ClusterSource
from jaxsrl.cluster.learners.errors import LostLearnerError
from jaxsrl.cluster.learners.host_gather import broadcast, gather, pack, unpack
from jaxsrl.cluster.learners.processes import Processes
from jaxsrl.cluster.learners.row_shards import merged, of_rows, share_of
from jaxsrl.cluster.learners.shared_metrics import merged_episodes, process_metrics, told_totals, with_totals_of_others
from jaxsrl.cluster.learners.stop_agreement import Agreement
from jaxsrl.cluster.learners.synchronized_source import TogetherSource
from jaxsrl.cluster.placement import OpenEngine
from jaxsrl.cluster.training import plan_where_reserved, store_bytes
from jaxsrl.collect.collector import Collector, CollectorConfig
from jaxsrl.collect.pool import PoolCollector
from jaxsrl.learner.finite_watch import FiniteWatch
from jaxsrl.metrics.sinks import Sinks
from jaxsrl.plan.passes.learner_processes import replicas_of
from jaxsrl.plan.placement import device_of_each_replica
from jaxsrl.plan.plan import plan_to_json
from jaxsrl.run_directory import PLAN, write_json
from jaxsrl.training.base import RunReport, TrainingSetup
from jaxsrl.training.host_training import HostTraining
from jaxsrl.training.reporter import AnyLearner
from jaxsrl.training.run_state import begin, from_arrays

_CHECKPOINT, _TOLD = "jaxsrl/checkpoint", "jaxsrl/told/"


class DistributedTraining(HostTraining):
    """One process's part of a run: its rows, its devices, and at process 0 the run's directory."""

    def __init__(self, setup: TrainingSetup, processes: Processes, open_engine: OpenEngine | None = None) -> None:
        """Nothing starts yet.

        Args:
            setup: whose plan is of `jaxsrl.cluster.learners.placement`.
            processes: of the run.
            open_engine: of the cluster that environments are on; None for those of this machine.

        Raises:
            UserError: the environments cannot be sent to other nodes.
        """
        super().__init__(setup)
        if open_engine is not None:
            pickle_source(setup.source)  # raises here, not on a node
        self._processes = processes
        self._open_engine, self._opened = open_engine, contextlib.ExitStack()
        self._has_learned = False
        self._agreement = Agreement(processes)
        self._replicas = replicas_of(setup.plan, processes.process_id, processes.num_processes)
        self._num_rows = setup.plan.shape.num_rows * len(self._replicas)
        self._restores = 0
        self._told_at = time.perf_counter()
        self._told_updates = 0
        self._waited: dict[str, float] = {}

    def begin(self, arrays: Arrays | None) -> int:
        """See `Training`; of this process's rows."""
        setup, config, processes = self.setup, self.config, self._processes
        if arrays is None:
            self._progress = begin(setup.agent, self.init_key, self._num_rows, setup.spec)
        else:
            mine = share_of(arrays, processes.process_id, processes.num_processes)
            sizes = (self._num_rows, config.rollout_length)
            self._progress = from_arrays(setup.agent, self.init_key, mine, *sizes, setup.spec)
        self._told_updates = int(self._progress.state.num_updates)
        return self._told_updates

    def make_source(self, config: CollectorConfig) -> Collector:
        """The pools, or environment hosts, of this process's replicas."""
        first_row = self._replicas.start * config.plan.shape.num_rows
        if self.progress.log.agent_state is not None:
            # Restored, of our rows; the source finds them by their place in the run.
            config = dataclasses.replace(config, agent_state=self._at_their_place(config.agent_state, first_row))
        source = self._pools(config) if self._open_engine is None else self._hosts(config, self._open_engine)
        failed = self._processes.raise_failed
        return TogetherSource(source, self._agreement, first_row, config.plan.num_rows, failed)

    def learn(self, sinks: Sinks) -> AnyLearner:
        """See `Training`."""
        learner = super().learn(sinks)
        self._has_learned = True
        return learner

    def close(self) -> None:
        """Ends environments; process 0, whose the cluster is, lets go of it when the others have."""
        # After a failure each ends for itself: who met the others then would wait for those who wait for it.
        meets = self._open_engine is not None and self._has_learned and sys.exc_info()[1] is None
        try:
            super().close()
        finally:
            if meets and self._processes.is_main:
                self._processes.meet()
            self._opened.close()
            if meets and not self._processes.is_main:
                self._processes.meet()

    def stall_seconds(self) -> float:
        """See `Training`; waiting for other processes has a deadline of its own, which must end first."""
        return super().stall_seconds() + self.config.distributed.wait_seconds

    def should_stop(self) -> bool:
        """Whether something failed here, or all have agreed to stop; then they have done the same updates."""
        if self._agreement.stopped_by:
            self.lifecycle.stop_signal = self._agreement.stopped_by
        return bool(self._agreement.stopped_by) or self.lifecycle.should_stop()

    def on_signal(self, name: str) -> None:
        """Asks all processes to stop; after training this process stops alone."""
        if self._has_learned:
            super().on_signal(name)
        else:
            self._agreement.wish(name)

    def arrays(self, learner: AnyLearner) -> Arrays:
        """See `Training`; all processes call it together, and all have all rows."""
        mine = super().arrays(learner)
        shares = [unpack(data) for data in gather(pack(of_rows(mine)))]
        return {**mine, **merged(shares)}

    def save(self, learner: AnyLearner, must: bool = False) -> None:
        """See `Training`; all processes call it together, and process 0 writes."""
        if self._processes.is_main:
            super().save(learner, must)
        else:
            self.arrays(learner)
            self._saved_update = learner.num_updates

    def newest_checkpoint(self, require: ValidateFn | None = None) -> Restored | None:
        """Restores process 0's newest checkpoint at every process; all call it together.

        Raises:
            UserError: process 0 rejects its checkpoints.
        """
        self._restores += 1
        key = f"{_CHECKPOINT}/{self._restores}"
        if self._processes.is_main:
            return self._restore_and_send(key, require)
        said = json.loads(self._processes.wait_for(key))
        if said is None:
            return None
        if isinstance(said, str):
            self._meet_before_the_end()
            raise UserError(said)
        step, length, metadata = said
        return step, unpack(broadcast(None, length)), metadata, []

    def _restore_and_send(self, key: str, require: ValidateFn | None) -> Restored | None:
        """Restores the newest checkpoint and sends it to the other processes, or the reason why it is rejected."""
        try:
            found = super().newest_checkpoint(require)
        except UserError as error:
            self._processes.tell(key, json.dumps(str(error)))
            self._meet_before_the_end()
            raise
        if found is None:
            self._processes.tell(key, json.dumps(None))
            return None
        step, arrays, metadata, _ = found
        data = pack(arrays)
        self._processes.tell(key, json.dumps([step, len(data), metadata]))
        broadcast(data, len(data))
        return found

    def _meet_before_the_end(self) -> None:
        """Waits until every process has read why the run ends: jax aborts those that process 0 leaves behind."""
        with contextlib.suppress(LostLearnerError):
            self._processes.meet()

    def after_update(self, learner: AnyLearner) -> None:
        """See `Training`; tells process 0 now and then how it goes here."""
        if time.perf_counter() - self._told_at >= min(1.0, self.config.log_every_seconds):
            self._tell(learner)
        super().after_update(learner)

    def episode_metrics(self) -> dict[str, float]:
        """Of the episodes of all rows, and what every process waits for; at process 0, a second old at most."""
        if not self._processes.is_main:
            return super().episode_metrics()
        told = {int(process): json.loads(text) for process, text in self._processes.told(_TOLD).items()}
        told[0] = {**told.get(0, {}), "episodes": super().episode_metrics()}
        return merged_episodes([one["episodes"] for one in told.values()]) | process_metrics(told)

    def say(self, line: str) -> None:
        """Tells the log and the terminal, at process 0."""
        if self._processes.is_main:
            super().say(line)

    def make_sinks(self, first: int) -> Sinks:
        """Process 0 writes records."""
        return super().make_sinks(first) if self._processes.is_main else Sinks([])

    def finite_watch(self) -> FiniteWatch:
        """Counts; a batch that lies in several processes is not written."""
        return FiniteWatch(self.config.max_skipped_updates, None)

    def report(self, state: LearnerState, num_updates: int, seconds: float) -> RunReport:
        """See `Training`; with a state of host arrays, which this process may go on with alone."""
        report = super().report(jax.device_get(state), num_updates, seconds)
        return dataclasses.replace(report, wrote_directory=self._processes.is_main)

    def _pools(self, config: CollectorConfig) -> Collector:
        devices = device_of_each_replica(config.plan.inference)
        return PoolCollector(config, devices, self.lifecycle, self._replicas)

    def _hosts(self, config: CollectorConfig, open_engine: OpenEngine) -> Collector:
        engine = self._opened.enter_context(open_engine(store_bytes(config)))
        plan = plan_where_reserved(config.plan, engine)
        if self._processes.is_main:
            write_json(self.setup.directory.path / PLAN, plan_to_json(plan))
        return ClusterSource(dataclasses.replace(config, plan=plan), engine, self._replicas)

    def _totals(self) -> dict[str, float]:
        """At process 0 with what the others told of their hosts and of failures, a second old at most."""
        mine = super()._totals()
        if not self._processes.is_main:
            return mine
        told = {int(process): json.loads(text) for process, text in self._processes.told(_TOLD).items()}
        return with_totals_of_others(mine, [said.get("totals", {}) for process, said in told.items() if process != 0])

    def _tell(self, learner: AnyLearner) -> None:
        """This process's episodes and shares of time since it told last."""
        now, totals = time.perf_counter(), super()._totals()
        seconds = max(now - self._told_at, 1e-9)
        updates = learner.num_updates - self._told_updates
        own_steps = self._num_rows * self.config.rollout_length
        waited = {
            "own_rows": totals["learner/wait_seconds"],
            "others": totals["processes/wait_seconds"],
        }
        shares = {
            f"wait_share/{what}": (total - self._waited.get(what, 0.0)) / seconds for what, total in waited.items()
        }
        speed = {"env_steps_per_second": updates * own_steps / seconds}
        text = json.dumps(
            {"episodes": super().episode_metrics(), "process": {**speed, **shares}, "totals": told_totals(totals)}
        )
        self._processes.tell(f"{_TOLD}{self._processes.process_id}", text)
        self._told_at, self._told_updates, self._waited = now, learner.num_updates, waited

    def _at_their_place(self, tree: Tree, first_row: int) -> Tree:
        """[b, ...] leaves of this process's rows as [B, ...] leaves of the run's."""

        def spread(leaf: np.ndarray) -> np.ndarray:
            whole = np.zeros((self.setup.plan.num_rows, *leaf.shape[1:]), leaf.dtype)
            whole[first_row : first_row + len(leaf)] = leaf
            return whole

        return map_leaves(spread, tree)
