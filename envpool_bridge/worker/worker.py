"""Main loop of one environment process: waits for actions, steps its rows, writes directly into the trajectory slot."""

import dataclasses
import pickle
import random
import signal
import time
import traceback
from collections.abc import Sequence
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, cast

import cloudpickle
import gymnasium  # noqa: F401  imported before the fork, so that a worker starts in milliseconds
import numpy as np

from envpool_bridge.envs.closing import close_each, closed_on_error
from envpool_bridge.envs.io.output_rules import REPAIRS
from envpool_bridge.envs.kept_modules import KeptModules
from envpool_bridge.envs.protocol import (
    EnvRows,
    EnvSource,
    EpisodeReset,
    ResetRequest,
    StagedRows,
    first_rows,
    has_stages,
    initial_stage,
    step_rows,
)
from envpool_bridge.faults.journal import journal_parts
from envpool_bridge.options import PoolOptions
from envpool_bridge.shm import segment
from envpool_bridge.shm.doorbell import Doorbell, Waiter
from envpool_bridge.shm.layout import SlotLayout
from envpool_bridge.shm.slots import SlotAccess, SlotViews, each_step, starts_of_envs, view_slots
from envpool_bridge.shm.worker_board import ProgressCounters, WorkerBoard
from envpool_bridge.spec.specs import NEXT_LEVEL
from envpool_bridge.spec.tree import Tree, take
from envpool_bridge.worker.isolation import IsolatedRows
from envpool_bridge.worker.process_tuning import flush_files
from envpool_bridge.worker.recovery import BrokenStep, DisabledRows, Recovery

NUM_DESCRIPTORS = 7  # received by every worker: see `main`
STACK_SIGNAL = signal.SIGRTMIN + 1
"""Signal that makes a worker write its stack. Not SIGUSR1, which asks a run to stop and often reaches its workers too."""
_IDLE_SECONDS = 1.0


@dataclasses.dataclass(frozen=True)
class WorkerConfig:
    """Configuration that the parent sends a new worker over its connection.

    Attributes:
        layout: layout of the segment.
        run_id: run id of the segment.
        worker: index of this worker.
        source: pickled EnvSource.
        options: options of the pool.
        resets: first reset of each part this worker serves; () after all of them have started.
        spin_seconds: time to spin before blocking on the doorbell.
        disabled: whether the environments are no longer stepped.
        local_policy: pickled MakeLocalPolicy of workers that act themselves; b"" if actions come from the parent.
        modules: Modules that the source and the policy use, as they were when the pool was made.
    """

    layout: SlotLayout
    run_id: bytes
    worker: int
    source: bytes
    options: PoolOptions
    resets: Sequence[ResetRequest]
    spin_seconds: float
    disabled: bool = False
    local_policy: bytes = b""
    modules: KeptModules = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class InfosMessage:
    """Infos of the observation of `step`, one for each row of the part; sent only if one is not empty."""

    part: int
    step: int
    infos: list[dict[str, object]]


@dataclasses.dataclass(frozen=True)
class ErrorMessage:
    """Cause of the worker's end: class name, message and traceback of the exception."""

    kind: str
    message: str
    traceback: str


@dataclasses.dataclass(frozen=True)
class FailureMessage:
    """Environment failure that the worker survived.

    Attributes:
        text: description.
        once: whether the parent logs such messages of all workers only once.
    """

    text: str
    once: bool = False


class Part:
    """State of the rows that this worker steps for one lane."""

    def __init__(self, part: int, layout: SlotLayout, slots: list[SlotViews], rows: EnvRows, verify_every: int) -> None:
        self._verify_every = verify_every
        shape, length = layout.shape, layout.shape.rollout_length
        columns = shape.part_rows(part)
        self.part = part
        self.lane = shape.lane_of_part(part)
        self.rows = rows
        self.step = 0  # of the newest observation
        self.opening: int | None = None  # sequence whose slot is not free yet
        self.columns = columns
        self.first = [first_rows(slot, columns) for slot in slots]
        self.whole = [step_rows(slot, slice(0, length), columns) for slot in slots]
        views = partial(each_step, slots, length, len(shape.parts_of_worker(shape.worker_of_part(part))))
        self.action = views(lambda slot, t: take(slot.action, (t, columns)))
        self.out = views(lambda slot, t: step_rows(slot, t, columns))
        self.stepped_at = views(lambda slot, t: slot.stepped_at[t, part : part + 1])
        self.block = views(self._block)

    def _block(self, slot: SlotViews, t: int) -> tuple[Tree, np.ndarray] | None:
        """Returns observations and rewards of the block of steps that ends at a step; None if none does."""
        if (t + 1) % self._verify_every and t + 1 != len(slot.reward):
            return None
        begin = t // self._verify_every * self._verify_every
        observation = take(slot.observation, (slice(begin + 1, t + 2), self.columns))
        return observation, slot.reward[begin : t + 1, self.columns]


class Worker:
    """One environment process. Process-safety: the only writer of its parts' columns and of their counters.

    The constructor maps the segment and makes the environments.

    Args:
        config: Configuration from the parent.
        connection: Connection to the parent.
        descriptors: Descriptors, as `main` receives them.
    """

    def __init__(self, config: WorkerConfig, connection: Connection, descriptors: Sequence[int]) -> None:
        segment_descriptor, _, own_bell, _, board, inference_bell, learner_bell = descriptors
        self._config, options = config, config.options
        self._connection = connection
        self._keep_infos = options.keep_infos
        self._segment = segment.attach(segment_descriptor, config.layout, config.run_id)
        self._counters = ProgressCounters(config.layout, self._segment.buffer, options.first_sequence)
        self._slots = view_slots(config.layout, self._segment.buffer)
        self._access = SlotAccess(config.layout)
        self._inference_bell = Doorbell(inference_bell)
        self._learner_bell = Doorbell(learner_bell)
        self._waiter = Waiter(Doorbell(own_bell), spin_seconds=config.spin_seconds)
        self._pending_resets: dict[int, ResetRequest] = {}
        shape = config.layout.shape
        self._rollout_length, self._num_slots = shape.rollout_length, shape.num_slots
        self._window = self._rollout_length * self._num_slots
        self._board = WorkerBoard(shape, board)
        agents = config.layout.spec.rows_per_env
        self._recovery = Recovery(config.worker, shape, self._slots, self._counters, self._board, agents)
        self._seed_global_generators()
        REPAIRS.on_first = lambda text: self._connection.send(FailureMessage(text, once=True))
        REPAIRS.on_repair = partial(self._board.count_repaired, config.worker)
        self._board.start_disabled(config.worker)
        source: EnvSource = pickle.loads(config.source)
        self._parts: list[Part] = []
        with closed_on_error() as made:
            for part in shape.parts_of_worker(config.worker):
                made.append(rows := self._make_rows(source, part))
                self._parts.append(Part(part, config.layout, self._slots, rows, options.verify_every))
                if has_stages(config.layout.spec) and not config.disabled:
                    cast("StagedRows", rows).read_stage = partial(self._read_stage, self._parts[-1])
                if isinstance(rows, IsolatedRows):
                    rows.on_cut = partial(self._cut, self._parts[-1])
        incarnation = self._counters.incarnation(self._parts[0].part)
        journal_parts(options.journal, self._parts, options.first_row, config.worker, incarnation)
        # A replacement worker continues its predecessor's count.
        self._waiter.waited_seconds = self._counters.waited_seconds(self._parts[0].part)

    def _seed_global_generators(self) -> None:
        """Seeds numpy's and Python's global generators, which all workers would otherwise inherit from the fork server."""
        options, shape = self._config.options, self._config.layout.shape
        part = shape.parts_of_worker(self._config.worker)[0]
        row = options.first_row + shape.part_rows(part).start
        place = (row, options.first_sequence, self._counters.incarnation(part))
        entropy = None if options.run_seed is None else (options.run_seed, *place)
        seeds = np.random.SeedSequence(entropy).generate_state(8)
        np.random.seed(seeds)  # noqa: NPY002  environments that use it must not share draws
        random.seed(seeds.tobytes())

    def _make_rows(self, source: EnvSource, part: int) -> EnvRows:
        config, columns = self._config, self._config.layout.shape.part_rows(part)
        if config.disabled:
            return DisabledRows(columns.stop - columns.start, self._recovery.newest_observation(part))
        options, supervision = config.options, config.options.supervision
        row_ids = range(options.first_row + columns.start, options.first_row + columns.stop)
        if supervision.bad_env_output == "raise" or options.run_seed is None:
            return source.make_rows(row_ids, options.run_seed, options.keep_infos)
        budget = (supervision.max_restarts, supervision.window_seconds)
        rows = IsolatedRows(source, config.layout.spec, row_ids, options.run_seed, budget)
        rows.on_disabled = partial(self._board.count_disabled, config.worker)
        rows.on_failure = lambda text: self._connection.send(FailureMessage(text))
        return rows

    def _read_stage(self, part: Part, row: int) -> int | None:
        sequence, t = divmod(part.step, self._rollout_length)
        spec, extras = self._config.layout.spec, self._slots[sequence % self._num_slots].extras
        if NEXT_LEVEL in extras:
            return int(extras[NEXT_LEVEL][t, part.columns.start + row])
        return initial_stage(spec) if spec.levels else self._board.stage(sequence)

    def failpoints(self) -> dict[str, list[tuple[Any, str]]]:
        """Returns the methods that `failpoint.PLACES` stand for."""
        return {
            "worker.step": [(part.rows, "step") for part in self._parts],
            "worker.reset": [(part.rows, "reset") for part in self._parts],
            "worker.commit": [(self._counters, "commit")],
            "worker.open_slot": [(self, "_open_slot")],
            "worker.carry": [(self._access, "carry")],
            "worker.post_observation": [(self._counters, "post_observation")],
            "worker.inference_bell": [(self._inference_bell, "ring")],
            "worker.learner_bell": [(self._learner_bell, "ring")],
        }

    def serve(self) -> None:
        """Resets the environments, then steps them until the parent requests a stop."""
        for index, part in enumerate(self._parts):
            if self._counters.has_started(part.part):
                self._resume(part)
            else:
                self._start(part, self._config.resets[index])
        while not self._counters.stop_requested():
            progressed = [
                self._advance(part) for part in self._parts
            ]  # every part in turn, so that no lane starves another
            if not any(progressed):
                self._waiter.wait(self._may_advance, _IDLE_SECONDS)
                self._counters.post_waited(self._parts[0].part, self._waiter.waited_seconds)
        self.close()

    def close(self) -> None:
        """Closes the environments, and flushes their files; prints what they raise."""
        rows = [part.rows for part in self._parts]
        try:
            close_each(rows)
        except Exception:  # noqa: BLE001  all steps are done: the parent has stopped reading messages
            traceback.print_exc()
        flush_files(rows)

    def _start(self, part: Part, request: ResetRequest) -> None:
        sequence = self._counters.actions_posted(part.lane) // self._rollout_length
        part.step = sequence * self._rollout_length
        slot = sequence % self._num_slots
        part.whole[slot].prepare()
        if isinstance(request, EpisodeReset):
            request = dataclasses.replace(request, on_step=partial(self._board.count_replayed, self._config.worker))
        part.rows.reset(request, part.first[slot])
        part.first[slot].begin_history()
        self._slots[slot].incarnation[part.part] = self._counters.incarnation(part.part)
        episodes = request.episodes if isinstance(request, EpisodeReset) else [0] * part.rows.num_rows
        self._board.record_episodes(part.part, sequence, episodes)
        self._publish(part)

    def _resume(self, part: Part) -> None:
        """Resumes a part after another worker's death; the step in progress becomes a broken step."""
        part.step, part.opening = self._recovery.place(part.part)
        part.rows = BrokenStep(part, part.rows, self._recovery)
        if part.opening is None:
            slot = part.step // self._rollout_length % self._num_slots
            self._slots[slot].incarnation[part.part] = self._counters.incarnation(part.part)

    def _cut(self, part: Part, rows: slice) -> None:
        self._recovery.cut_episodes(part.part, part.step, rows)

    def _may_advance(self) -> bool:
        counters = self._counters
        if counters.stop_requested():
            return True
        return any(
            self._has_actions(part) if part.opening is None else counters.can_fill(part.opening) for part in self._parts
        )

    def _has_actions(self, part: Part) -> bool:
        return self._counters.actions_posted(part.lane) > part.step

    def _advance(self, part: Part) -> bool:
        """Does the part's possible work without waiting; returns False if there was none."""
        counters = self._counters
        if part.opening is not None:
            if not counters.can_fill(part.opening):
                return False
            self._open_slot(part, part.opening)
            return True
        step = part.step
        if counters.actions_posted(part.lane) <= step:
            return False
        place = step % self._window
        if counters.is_reset(part.lane):
            part.rows.reset(self._receive_reset(part.part), part.out[place])
        else:
            part.rows.step(part.action[place], part.out[place])
            block = part.block[place]
            if block is not None:
                part.rows.verify(*block)
        part.stepped_at[place][0] = time.monotonic()
        part.step = step = step + 1
        if step % self._rollout_length:
            self._publish(part)
            return True
        sequence = step // self._rollout_length
        counters.commit(part.part, sequence - 1)
        self._learner_bell.ring()
        if counters.can_fill(sequence):
            self._open_slot(part, sequence)
        else:
            part.opening = sequence
        return True

    def _open_slot(self, part: Part, sequence: int) -> None:
        # The observation after the last step belongs to both trajectories: the end of one and the start of the next.
        before, slot = (sequence - 1) % self._num_slots, sequence % self._num_slots
        starts = starts_of_envs(self._slots[before].is_first[1:, part.columns], self._config.layout.spec.rows_per_env)
        self._board.carry_episodes(part.part, sequence, starts)
        self._access.carry(self._slots[before], self._slots[slot], part.columns)
        part.whole[slot].prepare()  # after the carry: a ring of one slot has only this slot
        self._slots[slot].incarnation[part.part] = self._counters.incarnation(part.part)
        part.opening = None
        self._publish(part)

    def _publish(self, part: Part) -> None:
        if self._keep_infos and any(part.rows.infos):
            self._send_infos(InfosMessage(part.part, part.step, part.rows.infos))
        if self._counters.post_observation(part.part, part.step):
            self._inference_bell.ring()

    def _send_infos(self, message: InfosMessage) -> None:
        # `Connection.send` would send tensors of torch as descriptors, which the parent does not receive.
        try:
            pickled = pickle.dumps(message)
        except (pickle.PicklingError, AttributeError, TypeError):
            # Classes of the user's script or of a function have no name that can be imported.
            pickled = cloudpickle.dumps(message)
        self._connection.send_bytes(pickled)

    def _receive_reset(self, part: int) -> ResetRequest:
        while part not in self._pending_resets:
            self._pending_resets |= self._connection.recv()
        return self._pending_resets.pop(part)
