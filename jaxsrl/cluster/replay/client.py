"""Experience that lies at a node of its own: the learner's side of it.

Slots go from environment hosts to that node and not through this process, which receives a summary of them.
Samples are asked for ahead, by credits; priorities go back in batches. What a draw knows is fixed by numbers, as everywhere.
"""

import collections
import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from agents.api import Sample
from envpool_bridge.errors import EnvPoolError
from envpool_bridge.shm.slot_summary import SlotSummaries
from envpool_bridge.shm.slots import SlotViews
from jaxsrl.cluster.handle import Handle, RestartManager, usage_by_node
from jaxsrl.cluster.protocol.bundles import REPLAY
from jaxsrl.cluster.protocol.engine import Call, Engine, HostGoneError, RemoteReplay, ReplayLostError
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


class ReplayHandle(Handle[RemoteReplay]):
    """Replay on a node. Its budget of restarts is 0: a successor would be empty, and the newest checkpoint has more."""

    kind, room, advice = "replay", REPLAY, "--agent.replay.capacity"

    def __init__(self, config: CollectorConfig, node: str) -> None:
        options = dataclasses.replace(config.supervision, max_restarts=0)
        super().__init__(options, 0, node, slice(0, config.plan.num_rows))
        self._slots = config.plan.environments.replicas * (config.plan.shape.num_slots + 1)

    @property
    def made_progress(self) -> bool:
        return self.stats.get("num_steps", 0.0) > 0.0

    def spawn_process(self, engine: Engine, node: str) -> RemoteReplay:
        return engine.spawn_replay(node, self._slots)

    def lost_error(self, reason: str) -> ReplayLostError:
        return ReplayLostError(
            f"replay on node {self.node} is lost with what it held ({reason}): look at the node; the same command resumes from the "
            f"newest checkpoint, or without one from the beginning"
        )


class RemoteReplayClient:
    """A `ReplayClient` at a `ReplayHost` somewhere. One thread, the learner's.

    Every wait has a deadline (`start_timeout_seconds` before the first answer, then `step_timeout_seconds`, of
    `--pool.supervision`). All methods that wait raise ReplayLostError when it has passed, or when replay is no more.

    Args:
        config: Configuration of the run's sources.
        engine: the cluster, which outlives this.
        update_key: the run's; only its kind matters here.
    """

    def __init__(self, config: CollectorConfig, engine: Engine, update_key: jax.Array) -> None:
        plan, self._engine, self._options = config.plan, engine, config.supervision
        if plan.replay is None or not plan.replay.nodes:
            raise RuntimeError("the plan has no replay on a node")
        setup = make_replay_setup(config, update_key)
        replay = setup.agent.data
        self._setup, self._blocks = setup, SampleBlocks(setup)
        self._prioritized, self._delay = bool(replay.config.priority_exponent), replay.config.priority_delay
        self._waited_seconds, self._sent_bytes, self._samples = 0.0, 0, 0
        self._next_sequence, self._hosts = config.first_sequence, range(plan.environments.replicas)
        # By host and sequence of a slot, the incarnation of the host: of slots to come, and of the last inserted ones.
        self._made_by: dict[tuple[int, int], int] = {}
        self._inserted: dict[tuple[int, int], int] = {}
        self._open: list[Call] = []  # for samples
        self._came: dict[int, Sample] = {}  # by number
        self._next_sample = 0
        # Priorities that were not sent, with the number of their sample.
        self._found: collections.deque[tuple[int, Any]] = collections.deque()
        self._given = 0
        self._sent: list[Call] = []
        self._handle = ReplayHandle(config, plan.replay.nodes[0])
        self._restarts = RestartManager(engine, config.supervision)
        self._handle.spawn(engine, self._handle.node)
        self._handle.start_with(setup, None)

    @property
    def num_steps(self) -> int:
        """Returns the stored env steps."""
        return int(self._handle.total_stats().get("num_steps", 0.0))

    @property
    def num_stale(self) -> int:
        """Returns the priorities that came after their windows were overwritten."""
        return int(self._handle.total_stats().get("num_stale", 0.0))

    @property
    def sample_bytes(self) -> int:
        return self._blocks.num_bytes

    def fetch(self, host: int, incarnation: int, slot: Call) -> Call:
        """Requests a slot from its host; see `RemoteReplay.fetch`."""
        return self._there.fetch(host, incarnation, slot)

    def note_slot(self, host: int, sequence: int, incarnation: int, summary_bytes: int = 0) -> None:
        """Marks a staged slot as part of the run.

        Args:
            host: Host that made it.
            sequence: Sequence of the slot.
            incarnation: Incarnation of that host: several may have made a slot of this sequence.
            summary_bytes: Bytes of it that came here.
        """
        self._made_by[host, sequence] = incarnation
        self._sent_bytes += summary_bytes

    def edges(self, host: int, sequence: int) -> SlotViews:
        """Returns the summary of a slot and its first and last observations with all of their frames.

        Args:
            host: Host that made it.
            sequence: Sequence of the slot: one that was not inserted yet, or the last that was.
        """
        key = (host, sequence)
        made = self._made_by[key] if key in self._made_by else self._inserted[key]
        block = self._result(self._there.call("control", "edges", host, made, sequence), _STEPS)
        return SlotSummaries(self._setup.layout, edges=True).view(block)

    def wait_until_started(self) -> None:
        """Waits until all memory is there.

        Raises:
            UserError: If the node has not enough memory.
        """
        if (start := self._handle.start_call) is not None:
            self._handle.on_result(start, self._result(start, _STARTS))

    def insert(self, batch: Any, keys: UpdateKeys) -> int:
        del batch
        self.wait_until_started()
        sequence, self._next_sequence = self._next_sequence, self._next_sequence + 1
        self._inserted = {(host, sequence): self._made_by.pop((host, sequence)) for host in self._hosts}
        incarnations = list(self._inserted.values())
        started = self._there.call("control", "begin", sequence, incarnations, keys.data())
        self._ask()
        self._handle.stats = self._result(started, _STARTS)  # it may compile what finds initial priorities
        return int(self._handle.stats["due"])

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
        self._handle.stats = self._result(self._there.call("control", "finish"), _STEPS)
        self._waited_seconds += time.perf_counter() - start

    def totals(self) -> dict[str, float]:
        """Returns the seconds that replay worked, as of its last report, and bytes and samples of its node."""
        where, stats = f"{PREFIX}{self._handle.node}/", self._handle.total_stats()
        return {
            "replay/busy_seconds": stats.get("busy_seconds", 0.0),
            f"{where}replay_received_bytes": stats.get("received_bytes", 0.0),
            f"{where}replay_sent_bytes": float(self._sent_bytes),
            f"{where}samples": float(self._samples),
            f"{where}sample_wait_seconds": self._waited_seconds,
            **usage_by_node([self._handle], "replay"),
        }

    def waited_seconds(self) -> float:
        return self._waited_seconds

    def to_arrays(self) -> Buffer:
        """Fetches the arrays part by part into memory of this process; see `ReplayClient`."""
        self.wait_until_started()
        self._send_priorities(self._given)
        for call in self._sent:
            self._result(call, _STEPS)
        self._sent = []
        parts = self._result(self._there.call("control", "save"), _STEPS)
        shapes = buffer_shapes(self._setup.agent.data, self._setup.shapes)
        buffer: Buffer = jax.tree.map(lambda leaf: np.empty(leaf.shape, leaf.dtype), shapes)
        arrays = bytes_of_leaves(buffer)
        calls: collections.deque[Call] = collections.deque()
        for number in range(parts + _PARTS_AHEAD):
            if number < parts:
                calls.append(self._there.call("control", "saved_part", number))
            if number >= _PARTS_AHEAD:
                which, part = self._result(calls.popleft(), _STEPS)
                copy_part(arrays, which, part, out=False)
        return buffer

    def restore(self, saved: Buffer) -> None:
        """Sends the arrays part by part; see `ReplayClient`.

        Raises:
            UserError: If it is of a buffer with other sizes.
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
        """Returns the calls to wait for while no sample is needed."""
        return self._handle.calls()

    def on_result(self, call: Call, value: Any) -> None:
        """Takes the result of one of `calls`."""
        self._handle.on_result(call, value)

    def poll(self) -> None:
        """Requests stats; cheap when there is nothing to do.

        Raises:
            ReplayLostError: If it does not answer.
        """
        self._restarts.poll([self._handle], lambda handle: None)

    def lost_error(self, error: HostGoneError) -> EnvPoolError:
        """Returns the error of a call that failed so."""
        return self._handle.lost_error(str(error))

    def close(self) -> None:
        """Ends it; idempotent."""
        self._handle.kill()
        self._open, self._sent, self._came = [], [], {}

    @property
    def _there(self) -> RemoteReplay:
        if self._handle.remote is None:
            raise RuntimeError("replay was closed")
        return self._handle.remote

    def _ask(self) -> None:
        """Opens a call for samples per free credit; samples that wait here count as full answers."""
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
        """Returns the result of a call once it has ended."""
        if not self._engine.wait([call], self._limit(setting)):
            raise self._silent(setting)
        return self._get(call)

    def _get(self, call: Call) -> Any:
        try:
            return self._engine.get(call)
        except HostGoneError as error:
            raise self.lost_error(error) from error

    def _limit(self, setting: str) -> float:
        return float(getattr(self._options, setting))

    def _silent(self, setting: str) -> EnvPoolError:
        limit = self._limit(setting)
        return self._handle.lost_error(f"it did not answer for {limit:g} s: {setting} of --pool.supervision")


class RemoteReplayMesh(HostReplayMesh):
    """A mesh on which samples are placed; of trajectories only the summaries are here."""

    def place_batch(self, slots: Sequence[SlotViews]) -> Any:
        """Returns the summaries of the slots without observations: arrays [T, B] by name, per slot."""
        names = ("reward", "terminated", "truncated", "valid", "policy_version")
        return [{name: getattr(slot, name) for name in names} | {"action": slot.action} for slot in slots]


def _is_computed(priority: Any) -> bool:
    is_ready: Callable[[], bool] | None = getattr(priority, "is_ready", None)  # which arrays of devices have
    return is_ready is None or is_ready()
