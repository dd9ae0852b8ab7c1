"""EnvPool: worker processes of environments and the ring they write into."""

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from types import TracebackType
from typing import Self

import numpy as np

from envpool_bridge.envs.fingerprint import read_modules
from envpool_bridge.envs.function_source import AnyEnv, as_source
from envpool_bridge.envs.protocol import GymnasiumReset, ResetRequest
from envpool_bridge.errors import PoolClosedError
from envpool_bridge.faults import failpoint
from envpool_bridge.faults.journal import open_learner_journal
from envpool_bridge.limits import count_cores
from envpool_bridge.options import PoolOptions
from envpool_bridge.shm import segment as shared_segment
from envpool_bridge.shm.doorbell import Doorbell, Waiter
from envpool_bridge.shm.layout import PoolShape, make_layout
from envpool_bridge.shm.ring import LaneCommand
from envpool_bridge.shm.slots import SlotAccess, SlotViews, each_step, view_slots
from envpool_bridge.shm.worker_board import ProgressCounters, WorkerBoard
from envpool_bridge.spec.specs import ArraySpec, EnvSpec, SpecTree
from envpool_bridge.spec.tree import Tree, take
from envpool_bridge.supervisor.processes import STOP_SECONDS, WorkerProcesses, pickle_source
from envpool_bridge.supervisor.supervisor import SupervisionTotals, Supervisor
from envpool_bridge.worker.policy import LocalPolicySpec, check_shape
from envpool_bridge.worker.worker import WorkerConfig

# The core is yielded at every turn, which costs less than a sleep and a wake-up (docs/reference/ring_protocol.md).
_SPIN_SECONDS = 500e-6
_START_POLL_SECONDS = 0.01


_OPEN: "weakref.WeakSet[EnvPool]" = weakref.WeakSet()  # every pool of this process that is not closed
_OPEN_LOCK = threading.Lock()


def _spin_seconds() -> tuple[float, float]:
    """Returns the spin times of workers and of acting threads before they sleep, given all open pools of this process.

    More workers than cores would only yield to each other, and an acting thread must not spin on a worker's core
    (docs/benchmarks).
    """
    cores = count_cores()
    with _OPEN_LOCK:
        workers, pools = sum(pool.shape.num_workers for pool in _OPEN), len(_OPEN)
    return _SPIN_SECONDS if workers <= cores else 0.0, _SPIN_SECONDS if workers + pools <= cores else 0.0


def _take_action(rows: slice, slot: SlotViews, t: int) -> Tree:
    return take(slot.action, (t, rows))


class EnvPool:
    """Environments in worker processes, read and written through shared memory.

    One thread acts (`wait_ready`, `post_actions`), one thread learns (`acquire`, `release`); they may be the same.

    Args:
        source: makes the environments, or a function that makes one; must be picklable by cloudpickle.
        shape: division of the rows.
        options: position of the rows and worker options; the defaults if None.
        extras: arrays that the agent's `act` adds to each step.
        agent_state: spec of a row's recurrent state; see `make_layout`.
        spec: spec of the source, if it is already known.

    Attributes:
        spec: spec of a row.
        shape: division of the rows.
        views: the slots; sequence `s` is stored in `views[s % shape.num_slots]`.
        access: reads and writes the part of a slot that acting needs.

    Raises:
        UserError: If the source cannot be sent to workers.
        SegmentTooLargeError: /dev/shm is too small.
    """

    def __init__(
        self,
        source: AnyEnv,
        shape: PoolShape,
        options: PoolOptions | None = None,
        *,
        extras: Mapping[str, ArraySpec] | None = None,
        agent_state: SpecTree = (),
        spec: EnvSpec | None = None,
    ) -> None:
        shared_segment.validate_machine()
        source = as_source(source)
        self._source = pickle_source(source)
        # Only workers of a run are replaced.
        self._modules = {} if options is None or options.run_seed is None else read_modules(source)
        self.spec = spec or source.spec()
        self.shape = shape
        self._layout = make_layout(self.spec, shape, extras or {}, agent_state)
        self._options = options = options or PoolOptions()
        failpoint.wanted()  # raises here rather than in every worker
        self._first_sequence = self._next_lease = options.first_sequence
        with contextlib.ExitStack() as made:  # closes what is made if the rest fails
            self._segment = made.enter_context(closing(shared_segment.create(self._layout)))
            self._counters = ProgressCounters(self._layout, self._segment.buffer, self._first_sequence)
            made.callback(self._counters.close)
            self._counters.start_at(self._first_sequence)
            self._journal = open_learner_journal(options.journal, shape, options.first_row)
            if self._journal is not None:
                made.callback(self._journal.close)
            self._inference_bell = made.enter_context(closing(Doorbell()))
            self._learner_bell = made.enter_context(closing(Doorbell()))
            self._board = made.enter_context(closing(WorkerBoard(shape)))
            self._stage = self._board.start_stages(self._first_sequence, options.stages, self.spec.stage)
            self._workers = WorkerProcesses(shape.num_workers, shape.num_parts, self.spec.env_id)
            made.callback(self._workers.stop, 0.0)
            bells, parts = (self._inference_bell, self._learner_bell), (self._workers, self._counters, self._board)
            self._supervisor = Supervisor(*parts, shape, options.supervision, bells, receive=not options.keep_infos)
            made.callback(self._supervisor.stop)
            self._made = made.pop_all()
        self.views: list[SlotViews] = view_slots(self._layout, self._segment.buffer)
        self.access = SlotAccess(self._layout)
        self._ring_workers = [
            [self._workers.doorbells[shape.worker_of_part(part)].ring for part in shape.parts_of_lane(lane)]
            for lane in range(shape.num_lanes)
        ]
        views = partial(each_step, self.views, shape.rollout_length, shape.num_lanes)
        self._actions = [  # the target of the actions of each step
            views(partial(_take_action, shape.lane_rows(lane))) for lane in range(shape.num_lanes)
        ]
        self._acting = self._learning = Waiter(self._inference_bell)
        self._closed = False
        with _OPEN_LOCK:
            _OPEN.add(self)

    @property
    def num_rows(self) -> int:
        """Number of rows of the pool, B."""
        return self.shape.num_rows

    @property
    def num_lanes(self) -> int:
        """Number of lanes of the pool."""
        return self.shape.num_lanes

    @property
    def inference_wait_seconds(self) -> float:
        """Total time that `wait_ready` has waited for environments."""
        return self._acting.waited_seconds

    @property
    def learner_wait_seconds(self) -> float:
        """Total time that `acquire` has waited for full slots."""
        return self._learning.waited_seconds

    @property
    def env_wait_seconds(self) -> float:
        """Total time that workers have waited for actions or free slots, summed over workers."""
        workers = range(self.shape.num_workers)
        return sum(self._counters.waited_seconds(self.shape.parts_of_worker(worker)[0]) for worker in workers)

    @property
    def supervision(self) -> SupervisionTotals:
        """Counts of worker and environment failures."""
        return self._supervisor.totals()

    @property
    def recovery_seconds(self) -> list[float]:
        """Seconds from each detected worker death to its successor's first step, the newest last."""
        return self._supervisor.recovery_seconds()

    def start(self, resets: Sequence[ResetRequest], local_policy: LocalPolicySpec | None = None) -> None:
        """Starts the workers, which reset their environments and post the first observations.

        Args:
            resets: one for each part, in row order.
            local_policy: makes the workers act themselves. The caller then only calls `acquire` and `release`, and
                `wake_workers` when the parameters change.

        Raises:
            UserError: workers share lanes, so a worker cannot act for a lane.
        """
        self._require_open()
        if local_policy is not None:
            check_shape(self.shape)
        options = self._options
        spin_seconds, acting_spin_seconds = _spin_seconds()
        config = WorkerConfig(
            layout=self._layout,
            run_id=self._segment.run_id,
            worker=-1,
            source=self._source,
            options=options,
            resets=(),
            spin_seconds=spin_seconds,
            local_policy=local_policy.factory if local_policy is not None else b"",
            modules={**self._modules, **(local_policy.modules if local_policy is not None else {})},
        )
        by_worker = [[resets[part] for part in self.shape.parts_of_worker(w)] for w in range(self.shape.num_workers)]
        bells = (self._inference_bell, self._learner_bell)
        extra = local_policy.descriptors if local_policy is not None else ()
        self._workers.share(self._segment.descriptor, self._board.descriptor, bells, extra)
        self._supervisor.start(config, by_worker, local_policy.may_act if local_policy is not None else None)
        failed, messages = self._workers.failed_descriptor, self._workers.messages_descriptor
        # A worker sends infos before it posts. If they exceed the socket's buffer, it posts only after they are read.
        watched = (failed, messages) if options.keep_infos else (failed,)
        self._acting = Waiter(self._inference_bell, watched, acting_spin_seconds)
        self._learning = Waiter(self._learner_bell, watched, 0.0)

    def position(self, lane: int) -> tuple[int, int]:
        """Returns (sequence, t) of the observation that the lane's next action answers."""
        return divmod(self._counters.actions_posted(lane), self.shape.rollout_length)

    def next_action(self, lane: int) -> Tree:
        """Returns the target arrays of the lane's next action: [R, ...] a leaf, for the lane's R rows."""
        places = self._actions[lane]
        return places[self._counters.actions_posted(lane) % len(places)]

    def ready_lanes(self) -> list[int]:
        """Returns the lanes whose newest observation awaits an action."""
        return self._counters.ready_lanes()

    def wait_ready(self, timeout_seconds: float, may_act: Callable[[int], bool] | None = None) -> list[int]:
        """Returns the lanes that await actions; empty after `timeout_seconds`.

        Args:
            timeout_seconds: upper bound of the wait.
            may_act: whether actions for a slot's sequence are possible now; other lanes are skipped. Call `wake` when
                the answer changes.

        Raises:
            WorkerError: If an environment raised.
            BadEnvOutputError: If an environment returned output that its spaces do not allow.
            WorkerDiedError: If a worker died and cannot be restarted.
            TooManyFailedEnvsError: too few rows with working environments are left.
            PoolClosedError: If the pool is closed.
        """
        self._require_open()
        if may_act is None:
            return self._acting.wait(self._counters.ready_lanes, timeout_seconds, self._workers.check)
        return self._acting.wait(
            lambda: [lane for lane in self.ready_lanes() if may_act(self.position(lane)[0])],
            timeout_seconds,
            self._workers.check,
        )

    def wait_acting(self, condition: Callable[[], bool], timeout_seconds: float) -> bool:
        """Waits on the acting thread until `condition()` is true, and raises as `wait_ready`.

        The condition is evaluated when a lane becomes ready and after `wake`.
        """
        self._require_open()
        return self._acting.wait(condition, timeout_seconds, self._workers.check)

    def wake(self) -> None:
        """Makes `wait_ready` evaluate its condition again; from any thread."""
        self._inference_bell.ring()

    def wake_workers(self) -> None:
        """Makes waiting workers evaluate their conditions again."""
        self._workers.ring_all()

    def wait_started(self, timeout_seconds: float) -> bool:
        """Waits on the learning thread until every lane has posted its first observation. Raises as `wait_ready`."""
        self._require_open()
        first = self._first_sequence * self.shape.rollout_length
        lanes = range(self.shape.num_lanes)

        def all_started() -> bool:
            return all(self._counters.observations_posted(lane) > first for lane in lanes)

        # Observations ring the acting thread's doorbell, not this one's: poll.
        deadline = time.monotonic() + timeout_seconds
        while not self._learning.wait(all_started, _START_POLL_SECONDS, self._workers.check):
            if time.monotonic() >= deadline:
                return False
        return True

    def wait_lane(self, lane: int, timeout_seconds: float) -> bool:
        """Waits until this lane awaits actions; raises as `wait_ready`."""
        self._require_open()
        return self._acting.wait(lambda: self._counters.is_ready(lane), timeout_seconds, self._workers.check)

    def post_actions(self, lane: int) -> None:
        """Publishes the actions that were written at `position(lane)` to the environments."""
        self._post(lane, LaneCommand.STEP)

    def post_resets(self, requests: Sequence[GymnasiumReset]) -> None:
        """Makes the next step of every lane, which must be ready, a reset; one request for each part, in row order."""
        for lane in range(self.shape.num_lanes):  # first: a worker reads its connection only for a posted reset
            self._post(lane, LaneCommand.RESET)
        for worker in range(self.shape.num_workers):  # one message each: a worker does not read during a reset
            self._workers.send_resets(worker, {part: requests[part] for part in self.shape.parts_of_worker(worker)})

    def infos(self, lane: int) -> list[dict[str, object]]:
        """Returns the infos of the lane's newest observation, one for each row. The lane must be ready; raises as `wait_ready`."""
        step = self._counters.actions_posted(lane)
        infos: list[dict[str, object]] = []
        self._workers.check()  # infos are sent before their observation is posted, so they have all arrived
        for part in self.shape.parts_of_lane(lane):
            message = self._workers.infos[part]
            empty: list[dict[str, object]] = [{} for _ in range(self.shape.rows_per_part)]
            infos += message.infos if message is not None and message.step == step else empty
        return infos

    def acquire(self, timeout_seconds: float) -> int | None:
        """Leases the next full slot, in order of sequence; None after `timeout_seconds`. Raises as `wait_ready`."""
        self._require_open()
        if not self._learning.wait(self._slot_is_full, timeout_seconds, self._workers.check):
            return None
        self._next_lease += 1
        return self._next_lease - 1

    def set_stage(self, stage: int) -> None:
        """Sets the stage of resets in the slots that workers may not fill yet; the spec must have a stage."""
        self._stage = stage

    def slot_memory(self, sequence: int) -> np.ndarray:
        """Returns the memory of a leased slot, [slot_bytes] uint8, as `view_slot` reads it; for sending whole slots."""
        begin = self._layout.slots_offset_bytes + sequence % self.shape.num_slots * self._layout.slot_bytes
        return np.frombuffer(self._segment.buffer, np.uint8, self._layout.slot_bytes, begin)

    def release(self, sequence: int) -> None:
        """Returns a leased slot to the environments. Its views must not be read afterwards."""
        if self._journal is not None:
            self._journal.note(sequence, self.views[sequence % self.shape.num_slots])
        if self._stage is not None:
            self._board.set_stage(sequence + self.shape.num_slots, self._stage)
        self._counters.release(sequence)
        self._workers.ring_all()

    def check(self) -> None:
        """Raises errors that workers have reported, as `wait_ready` does."""
        self._workers.check()

    def close(self, timeout_seconds: float = STOP_SECONDS) -> None:
        """Stops the workers and frees the memory; idempotent. Views that are still referenced stay readable.

        Args:
            timeout_seconds: time that workers have to finish their step and close their environments. Then they are
                killed, as after a Ctrl-C.
        """
        if self._closed:
            return
        with self._made:  # frees everything, also after a Ctrl-C, which ends the waits
            self._closed = True
            with _OPEN_LOCK:
                _OPEN.discard(self)
            try:
                self._supervisor.stop()
                self._counters.request_stop()
                self._workers.stop(timeout_seconds)
            finally:
                self.views, self._actions = [], []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _post(self, lane: int, command: LaneCommand) -> None:
        self._counters.post_actions(lane, self._counters.actions_posted(lane), command)
        for ring in self._ring_workers[lane]:
            ring()

    def _slot_is_full(self) -> bool:
        return self._counters.num_committed() > self._next_lease

    def _require_open(self) -> None:
        if self._closed:
            raise PoolClosedError("the pool is closed: make a new one")
