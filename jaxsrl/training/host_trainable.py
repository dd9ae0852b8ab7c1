"""A learner that trains from trajectories which the host collects: in this process, in others, or on other machines."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from agents.api import LearnerState
from envpool_bridge.errors import UserError
from envpool_bridge.shm.slots import SlotViews, join_slots
from envpool_bridge.spec.tree import leaves
from jaxsrl.checkpoints.store import Arrays
from jaxsrl.collect.collector import Collector, CollectorConfig, StagedCollector
from jaxsrl.collect.inference.act import wrap_step
from jaxsrl.collect.stage_queue import stage_delay
from jaxsrl.learner.finite_watch import FiniteWatch
from jaxsrl.learner.host_replay import HostReplay
from jaxsrl.learner.loop import AnyLearner, HostLearner
from jaxsrl.metrics.episodes import Episode
from jaxsrl.plan.placement import devices_of
from jaxsrl.replay.state import holds_buffer
from jaxsrl.training.async_learners import AsynchronousLearners
from jaxsrl.training.build import MeshUpdate, make_learner, start_compilation
from jaxsrl.training.collectors import CollectorFactory
from jaxsrl.training.replay_lines import ReplayLines
from jaxsrl.training.run_state import (
    Progress,
    begin,
    buffer_to_arrays,
    cut_experience,
    from_arrays,
    rows_fit,
    to_arrays,
)
from jaxsrl.training.setup import TrainingSetup
from jaxsrl.training.step_recorder import StepRecorder, make_recorder
from jaxsrl.training.trainable import Trainable

_NO_ROW = np.uint32(2**32 - 1)
_NOT_FINITE_BATCH = "not_finite_batch.npz"


class HostTrainable(Trainable):
    """A `Trainable` with a collector, a learner and perhaps host replay. Owner of all three."""

    def __init__(self, setup: TrainingSetup, collectors: CollectorFactory) -> None:
        self._setup = setup
        self._collectors = collectors
        self._program: MeshUpdate | None = None
        self._progress: Progress | None = None
        self._collector: Collector | None = None
        self._learner: HostLearner | None = None
        self._replay: HostReplay | None = None
        self._saved: Arrays | None = None
        self._recorder: StepRecorder | None = None

    @property
    def progress(self) -> Progress:
        """Returns the run between two updates; after `restore_or_init`."""
        if self._progress is None:
            raise RuntimeError("restore_or_init comes first")
        return self._progress

    @property
    def learner(self) -> HostLearner:
        """Returns the learner; after `start`."""
        if self._learner is None:
            raise RuntimeError("start comes first")
        return self._learner

    def rows_fit(self, arrays: Arrays) -> bool:
        return rows_fit(arrays, self._setup.agent, self._setup.config.num_envs, self._setup.spec)

    def restore_or_init(self, arrays: Arrays | None) -> int:
        setup, num_rows = self._setup, self._collectors.num_rows
        if arrays is None:
            self._program = start_compilation(setup, 0)  # while parameters are initialized and environments start
            self._progress = begin(setup.agent, setup.keys.init, num_rows, setup.spec, self._collectors.first_row)
        else:
            sizes, first_row = (num_rows, setup.config.rollout_length), self._collectors.first_row
            self._progress = from_arrays(setup.agent, setup.keys.init, arrays, *sizes, setup.spec, first_row)
            self._saved = arrays
        return int(self._progress.state.num_updates)

    def start(self) -> AnyLearner:
        setup, progress = self._setup, self.progress
        first = int(progress.state.num_updates)
        if self._program is None:
            self._program = start_compilation(setup, first)
        if progress.log.stages is not None:
            progress.log.stages.resize(stage_delay(setup.plan))
        self._collector = collector = self._collectors.make_collector(self._collector_config(first))
        if setup.plan.max_policy_lag == 1 and first:
            if progress.previous_params is None:  # saved at another lag, or restored in part
                progress.previous_params = progress.state.params
            collector.publish(first - 1, progress.previous_params)
        self._replay = self._collectors.make_replay(self._saved)
        self._saved = None
        # A batch whose rows are in several processes is not written.
        has_all_rows = self._collectors.num_rows == setup.config.num_envs
        dump = setup.directory.path / _NOT_FINITE_BATCH if has_all_rows else None
        watch = FiniteWatch(setup.config.learner.max_nonfinite_updates, dump)
        self._learner = make_learner(setup, collector, progress, self._program, self._replay, watch)
        if holds_buffer(progress.state.extra):
            progress.state = self._learner.state  # else restored experience stays in memory
        if not setup.spec.levels and {*progress.reset.stages, *self._stages()} - {setup.spec.stage}:
            self._staged_collector()  # raises here instead of continuing at the first stage
        self._recorder = make_recorder(setup, progress.log)
        collector.start(progress.reset)
        return self._learner

    @property
    def stage(self) -> int | None:
        stages = self.progress.log.stages
        return None if stages is None else stages.later

    def set_stage(self, stage: int) -> None:
        log = self.progress.log
        if log.stages is None:
            raise UserError(
                f"level replay chooses the stage of every episode: use --env.levels 0 to set stages, got stage {stage}"
                if self._setup.spec.levels
                else f"environments receive no stage: start the run with --env.stage or --env.stages, got stage {stage}"
            )
        self._staged_collector().set_stage(stage)
        log.stages.later = stage

    def validate_control(self, action: str) -> None:
        if isinstance(self._learner, AsynchronousLearners):
            raise UserError(
                f"plan {self._setup.plan.name}: replicas that learn at their own pace cannot {action}: stop the run; the same "
                f"command resumes it"
            )

    def _staged_collector(self) -> StagedCollector:
        """Returns the collector, whose stage may change.

        Raises:
            UserError: If its environments are on other machines, or its trajectories are consumed by several threads.
        """
        collector: Any = self._collector
        if isinstance(self._learner, AsynchronousLearners) or not hasattr(collector, "set_stage"):
            raise UserError(
                f"plan {self._setup.plan.name}: the stage cannot change while it trains: expected environments on this "
                f"machine and synchronous learners in one process, for example --plan single_learner_fine"
            )
        return collector

    def _stages(self) -> tuple[int, ...]:
        stages = self.progress.log.stages
        return () if stages is None else stages.stages

    def check_restored(self, should_stop: Callable[[], bool]) -> None:
        log, expected = self.progress.log, self.progress.log.last_observation
        if expected is None or self._collector is None:
            return
        lines = ReplayLines(self.progress.reset, self._setup.log)
        observed = self._collector.first_observation(lambda: lines(self.totals()) or should_stop())
        if observed is None:
            return
        if log.restarted.any():
            self._setup.log(
                f"{log.restarted.sum()} of {len(log.restarted)} environments start new episodes: theirs were too long to be "
                f"replayed (jaxsrl.collect.episode_log.MAX_BYTES), so the run differs from an uninterrupted one"
            )
        differs = np.zeros(len(log.restarted), bool)
        for seen, wanted in zip(leaves(observed), leaves(expected), strict=True):
            differs |= (seen != wanted).reshape(len(differs), -1).any(1)
        rows = np.flatnonzero(differs & ~log.restarted).tolist()
        if rows:
            learner = self.learner
            if holds_buffer(learner.state.extra):
                learner.state = cut_experience(self._setup.agent, learner.state, differs)
            self._setup.log(
                f"{len(rows)} of {len(differs)} environments could not be restored (first: {rows[:5]}): they are not "
                f"deterministic given seed and actions, so the run differs from an uninterrupted one"
            )

    def step(self) -> bool:
        return self.learner.step(self._observe)

    def _observe(self, slots: Sequence[SlotViews]) -> None:
        slot = join_slots(slots)
        self.progress.episodes.observe(slot)
        self.progress.log.observe(slot)
        if self._recorder is not None:
            self._recorder.observe(slots)

    def take_episodes(self) -> Sequence[Episode]:
        episodes = self.progress.episodes
        taken, episodes.finished = episodes.finished or [], []
        return taken

    def final_state(self) -> LearnerState:
        if self._learner is None:
            return self.progress.state
        learners = self._setup.plan.learners
        # Callers that use the parameters of all policies afterwards, as an evaluation does, need them on one device.
        return (
            self._learner.state
            if len(learners) == 1
            else jax.device_put(self._learner.state, devices_of(learners[0])[0])
        )

    def to_arrays(self) -> Arrays:
        if self._recorder is not None:
            self._recorder.commit()  # before the checkpoint, so that no resumed run finds steps missing
        with_replay, progress = self._setup.config.checkpoint.include_replay, self.progress
        previous_params = self.learner.previous_params if self._setup.plan.max_policy_lag == 1 else None
        arrays = to_arrays(self.learner.state, previous_params, progress.episodes, progress.log, with_replay)
        if self._replay is not None and with_replay:
            arrays |= buffer_to_arrays(self._replay.experience.to_arrays())
        return arrays

    def episode_metrics(self) -> dict[str, float]:
        return self.progress.episodes.metrics()

    def episode_timings(self) -> dict[str, float]:
        return self.progress.episodes.timings()

    def totals(self) -> dict[str, float]:
        parts = (self._collector, self._learner, self._replay)
        return {name: total for part in parts if part is not None for name, total in part.totals().items()}

    def waits(self) -> list[str]:
        return [text for part in (self._learner, self._collector) if part is not None for text in part.waits()]

    def close(self, failure: BaseException | None) -> None:
        if failure is None and self._program is not None:  # stopped before the first update
            self._program.join()
        with contextlib.ExitStack() as held:
            held.callback(self._collectors.close, failure)
            for part in (self._replay, self._collector, self._recorder):
                if part is not None:
                    held.callback(part.close)

    def _collector_config(self, first: int) -> CollectorConfig:
        setup = self._setup
        agent_state = self.progress.log.agent_state
        if agent_state is None:
            agent_state = jax.device_get(setup.agent.initial_agent_state(setup.config.num_envs))
        return CollectorConfig(
            setup.source,
            setup.spec,
            setup.plan,
            setup.agent,
            setup.config.seed,
            first,
            self._key_of_actions(first),
            agent_state,
            supervision=setup.config.pool.supervision,
            stages=self._stages(),
        )

    def _key_of_actions(self, first: int) -> jax.Array:
        """Returns the key of this process's actions, whose steps are counted from `first` updates.

        After dropped trajectories these counts have been used before.
        A different key is then used, so that no (key, step) pair repeats.
        """
        key, steps = self._setup.keys.act, self.progress.log.end_step
        if steps == first * self._setup.config.rollout_length:
            return key
        return jax.random.fold_in(jax.random.fold_in(key, _NO_ROW), wrap_step(steps))
