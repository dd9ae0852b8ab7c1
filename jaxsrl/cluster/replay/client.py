"""Experience that lies at a node of its own: the learner's side of it.

Slots go from environment hosts to that node and not through this process, which is told what its bookkeeping needs of them.
Samples are asked for ahead, by credits; priorities go back in batches. What a draw knows is fixed by numbers, as everywhere.
"""

import collections
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from agents.api import Sample
from envpool_bridge.shm.slot_summary import SlotSummaries
from envpool_bridge.shm.slots import SlotViews
from jaxsrl.cluster.protocol.engine import STATS_SECONDS, Call, Engine, HostGoneError, RemoteReplay, ReplayLostError
from jaxsrl.cluster.replay.host import PART_BYTES, bytes_of_leaves, copy_part, num_parts
from jaxsrl.cluster.replay.setup import SampleBlocks, make_replay_setup
from jaxsrl.collect.collector import CollectorConfig
from jaxsrl.learner.host_replay import HostReplayMesh
from jaxsrl.metrics.cluster_traffic import PREFIX
from jaxsrl.plan.passes.place_replay import SAMPLES_AHEAD
from jaxsrl.replay.client import UpdateKeys, buffer_shapes
from jaxsrl.replay.state import Buffer

_PARTS_AHEAD = 2
_STARTS, _STEPS = "start_timeout_seconds", "step_timeout_seconds"


class RemoteReplayClient:
    """A `ReplayClient` at a `ReplayHost` somewhere. One thread, the learner's.

    Every wait has a deadline (`start_timeout_seconds` before the first answer, then `step_timeout_seconds`, of
    `--pool.supervision`). All methods that wait raise ReplayLostError when it has passed, or when replay is no more.

    Args:
        config: of the run's sources.
        engine: the cluster; the caller closes it after this.
        update_key: the run's; only its kind matters here.

    Attributes:
        num_steps: env steps that are there.
        num_stale: priorities that came when their windows could no longer be drawn.
    """

    def __init__(self, config: CollectorConfig, engine: Engine, update_key: jax.Array) -> None:
        plan, self._engine, self._options = config.plan, engine, config.supervision
        if plan.replay is None or not plan.replay.nodes:
            raise RuntimeError("the plan has no replay on a node")
        self.node = plan.replay.nodes[0]
        setup = make_replay_setup(config, update_key)
        replay = setup.agent.data
        self._setup, self._blocks = setup, SampleBlocks(setup)
        self._prioritized, self._delay = bool(replay.config.priority_exponent), replay.config.priority_delay
        self.num_steps = self.num_stale = 0
        self._busy_seconds = self._waited_seconds = 0.0
        self._received_bytes = self._sent_bytes = self._samples = 0
        self._next_sequence, self._hosts = config.first_sequence, range(plan.environments.replicas)
        # By host and sequence of a slot, of which beginning of the host it is: of those to come, and of the last that went in.
        self._made_by: dict[tuple[int, int], int] = {}
        self._inserted: dict[tuple[int, int], int] = {}
        self._open: list[Call] = []  # for samples
        self._came: dict[int, Sample] = {}  # by number
        self._next_sample = 0
        # Priorities that were not sent, with the number of their sample.
        self._found: collections.deque[tuple[int, Any]] = collections.deque()
        self._given = 0
        self._sent: list[Call] = []
        self._asked: tuple[Call, float] | None = None
        self._asked_at = 0.0
        slots = plan.environments.replicas * (plan.shape.num_slots + 1)
        self._remote: RemoteReplay | None = engine.spawn_replay(self.node, slots)
        self._started: Call | None = self._remote.call("control", "start", setup.to_bytes())

    @property
    def sample_bytes(self) -> int:
        return self._blocks.num_bytes

    def fetch(self, host: int, beginning: int, slot: Call) -> Call:
        """Has a host's slot fetched; see `RemoteReplay.fetch`."""
        return self._there.fetch(host, beginning, slot)

    def note_slot(self, host: int, sequence: int, beginning: int, told_bytes: int = 0) -> None:
        """Tells that a slot is staged, and is the run's.

        Args:
            host: that made it.
            sequence: of the slot.
            beginning: of that host: several may have made a slot of this sequence.
            told_bytes: that came here of it.
        """
        self._made_by[host, sequence] = beginning
        self._sent_bytes += told_bytes

    def edges(self, host: int, sequence: int) -> SlotViews:
        """What is told of a slot, with the observations that it begins and ends with, all of their frames.

        Args:
            host: that made it.
            sequence: of the slot: one that was not inserted yet, or the last that was.
        """
        key = (host, sequence)
        made = self._made_by[key] if key in self._made_by else self._inserted[key]
        block = self._result(self._there.call("control", "edges", host, made, sequence), _STEPS)
        return SlotSummaries(self._setup.layout, edges=True).view(block)

    def wait_until_started(self) -> None:
        """Waits until all memory is there.

        Raises:
            UserError: the node has not enough memory.
        """
        if self._started is not None:
            self._result(self._started, _STARTS)
            self._started = None

    def insert(self, batch: Any, keys: UpdateKeys) -> int:
        del batch
        self.wait_until_started()
        sequence, self._next_sequence = self._next_sequence, self._next_sequence + 1
        self._inserted = {(host, sequence): self._made_by.pop((host, sequence)) for host in self._hosts}
        beginnings = list(self._inserted.values())
        begun = self._there.call("control", "begin", sequence, beginnings, keys.data())
        self._ask()
        found = self._result(begun, _STARTS)  # it may compile what finds initial priorities
        self._take_counts(found[1:])
        return int(found[0])

    def sample(self) -> Sample:
        start = time.perf_counter()
        number, self._next_sample = self._next_sample, self._next_sample + 1
        self._send_priorities(number - 1 - self._delay)
        deadline = time.monotonic() + self._limit(_STEPS)
        while number not in self._came:
            self._take_in(deadline)
        sample = self._came.pop(number)
        self._ask()
        self._waited_seconds += time.perf_counter() - start
        self._samples += 1
        return sample

    def update_priorities(self, priority: Any) -> None:
        if self._prioritized:
            self._found.append((self._given, priority))
            self._given += 1

    def end_update(self) -> None:
        if not self._prioritized:
            return
        start = time.perf_counter()
        self._send_priorities(self._given - 1 - self._delay)
        self._take_counts(self._result(self._there.call("control", "finish"), _STEPS))
        self._waited_seconds += time.perf_counter() - start

    def totals(self) -> dict[str, float]:
        """Returns seconds that replay worked, as it told lately; and bytes and samples of its node."""
        where = f"{PREFIX}{self.node}/"
        return {
            "replay/busy_seconds": self._busy_seconds,
            f"{where}replay_received_bytes": float(self._received_bytes),
            f"{where}replay_sent_bytes": float(self._sent_bytes),
            f"{where}samples": float(self._samples),
            f"{where}sample_wait_seconds": self._waited_seconds,
        }

    def waited_seconds(self) -> float:
        return self._waited_seconds

    def to_arrays(self) -> Buffer:
        """See `ReplayClient`; fetched part by part, into memory of this process."""
        self.wait_until_started()
        self._send_priorities(self._given)
        for call in self._sent:
            self._result(call, _STEPS)
        self._sent = []
        parts = self._result(self._there.call("control", "save"), _STEPS)
        shapes = buffer_shapes(self._setup.agent.data, self._setup.shapes)
        found: Buffer = jax.tree.map(lambda leaf: np.empty(leaf.shape, leaf.dtype), shapes)
        arrays = bytes_of_leaves(found)
        calls: collections.deque[Call] = collections.deque()
        for number in range(parts + _PARTS_AHEAD):
            if number < parts:
                calls.append(self._there.call("control", "saved_part", number))
            if number >= _PARTS_AHEAD:
                which, part = self._result(calls.popleft(), _STEPS)
                copy_part(arrays, which, part, out=False)
        return found

    def restore(self, saved: Buffer) -> None:
        """See `ReplayClient`; sent part by part.

        Raises:
            UserError: it is of a buffer with other sizes.
        """
        self.wait_until_started()
        arrays = bytes_of_leaves(jax.tree.map(np.ascontiguousarray, saved))
        size = sum(array.nbytes for array in arrays)
        calls: collections.deque[Call] = collections.deque()
        for number in range(num_parts(size)):
            part = np.empty(min(PART_BYTES, size - number * PART_BYTES), np.uint8)
            copy_part(arrays, number, part, out=True)
            calls.append(self._there.call("control", "restore_part", number, part))
            if len(calls) == _PARTS_AHEAD:
                self._result(calls.popleft(), _STEPS)
        for call in calls:
            self._result(call, _STEPS)
        self._result(self._there.call("control", "restore"), _STEPS)

    def calls(self) -> list[Call]:
        """Returns those that are to be waited for while no sample is."""
        return [self._asked[0]] if self._asked is not None else []

    def note(self, value: np.ndarray) -> None:
        """Takes in the answer to how it is."""
        self._asked = None
        self._take_counts(value)

    def look_after(self) -> None:
        """Asks how it is, once a second; cheap if nothing is to be done.

        Raises:
            ReplayLostError: it does not answer.
        """
        now = time.monotonic()
        if self._asked is not None:
            setting = _STARTS if self._started is not None else _STEPS
            call, asked_at = self._asked
            # Who asks may have been busy: what was answered meanwhile has only not been taken in.
            if now - asked_at > self._limit(setting) and not self._engine.wait([call], 0.0):
                raise self._silent(setting)
        elif now - self._asked_at >= STATS_SECONDS:
            self._asked_at = now
            self._asked = (self._there.call("control", "counts"), now)

    def lost(self, error: HostGoneError) -> ReplayLostError:
        """What is to be raised where a call of it has failed so."""
        return ReplayLostError(
            f"replay on node {self.node} is lost with what it held ({error}): look at the node; the same command resumes from the "
            f"newest checkpoint, or without one from the beginning"
        )

    def close(self) -> None:
        """Ends it; idempotent."""
        if self._remote is not None:
            self._remote.kill()
        self._remote, self._asked, self._open, self._sent, self._came = None, None, [], [], {}

    @property
    def _there(self) -> RemoteReplay:
        if self._remote is None:
            raise RuntimeError("replay was closed")
        return self._remote

    def _ask(self) -> None:
        """Has as many calls for samples open as there are credits; what waits here holds some too, as if answers were full."""
        while len(self._open) + -(-len(self._came) // self._blocks.most) < SAMPLES_AHEAD:
            self._open.append(self._there.call("samples", "sample"))

    def _send_priorities(self, last: int) -> None:
        """Sends those of all samples up to number `last`, waiting for them, and what is computed already of the others."""
        ready: list[tuple[int, Any]] = []
        while self._found and (self._found[0][0] <= last or _is_computed(self._found[0][1])):
            ready.append(self._found.popleft())
        if ready:
            block = np.stack([np.asarray(priority, np.float32) for _, priority in ready])
            self._sent.append(self._there.call("control", "give", ready[0][0], block))

    def _take_in(self, deadline: float) -> None:
        """Waits for samples."""
        left = deadline - time.monotonic()
        ended = self._engine.wait([*self._open, *self._sent], max(0.0, left))
        if not ended:
            raise self._silent(_STEPS)
        for call in ended:
            value = self._get(call)
            if call in self._sent:
                self._sent.remove(call)
                continue
            self._open.remove(call)
            self._came |= self._blocks.read(value)
            self._sent_bytes += value.nbytes

    def _result(self, call: Call, setting: str) -> Any:
        """What a call returned, once it has ended."""
        if not self._engine.wait([call], self._limit(setting)):
            raise self._silent(setting)
        return self._get(call)

    def _get(self, call: Call) -> Any:
        try:
            return self._engine.get(call)
        except HostGoneError as error:
            raise self.lost(error) from error

    def _take_counts(self, counts: Sequence[float] | np.ndarray) -> None:
        num_steps, num_stale, self._busy_seconds, received, _ = counts
        self.num_steps, self.num_stale, self._received_bytes = int(num_steps), int(num_stale), int(received)

    def _limit(self, setting: str) -> float:
        return float(getattr(self._options, setting))

    def _silent(self, setting: str) -> ReplayLostError:
        return self.lost(
            HostGoneError(f"it did not answer for {self._limit(setting):g} s: {setting} of --pool.supervision")
        )


class RemoteReplayMesh(HostReplayMesh):
    """A mesh on which samples are placed; of trajectories only what the learner's process is told of them is here."""

    def place_batch(self, slots: Sequence[SlotViews]) -> Any:
        """What is told of the slots, but for observations: arrays [T, B] by name, of each slot."""
        names = ("reward", "terminated", "truncated", "valid", "policy_version")
        return [{name: getattr(slot, name) for name in names} | {"action": slot.action} for slot in slots]


def _is_computed(priority: Any) -> bool:
    is_ready: Callable[[], bool] | None = getattr(priority, "is_ready", None)  # which arrays of devices have
    return is_ready is None or is_ready()
