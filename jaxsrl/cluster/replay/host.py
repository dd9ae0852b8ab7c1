"""Replay on a node of its own, behind a few calls. It knows no engine.

Slots come from environment hosts and lie here until the learner's process says that they are to be inserted.
Calls say which slots or priorities they are about, and answers which sample: so they may overtake each other.
"""

import threading
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from envpool_bridge.faults.journal import open_learner_journal
from envpool_bridge.shm.slot_summary import SlotSummaries
from envpool_bridge.shm.slots import SlotViews, view_slot
from jaxsrl.cluster.protocol.setup import load_setup
from jaxsrl.cluster.replay.setup import PART_BYTES, ReplaySetup, SampleBlocks
from jaxsrl.learner.host_replay import trajectory_on_host
from jaxsrl.machine.process_usage import usage_totals
from jaxsrl.replay.client import KeyPrograms, LocalReplayClient, UpdateKeys

_IDLE_SECONDS = 1e6  # the learner's process has the deadlines, and ends this one
_CLOSED = "replay was closed"


class ReplayHost:
    """Experience of a run, and a thread that gathers samples ahead. Thread-safety: any threads; calls of one kind are in turn."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._replay: LocalReplayClient | None = None
        self._closed = False
        self._staged: dict[tuple[int, int, int], np.ndarray] = {}  # by host, incarnation and sequence
        self._newest: dict[tuple[int, int, int], np.ndarray] = {}  # that were inserted last, likewise
        self._next_priorities = 0  # number of the sample whose priorities come next
        self._early: dict[int, np.ndarray] = {}  # priorities [N] that came before their turn, by that number
        self._next_sample, self._drawing = 0, threading.Lock()
        self._giving = threading.Lock()
        self._saving: list[np.ndarray] = []
        self._received_bytes = 0

    def start(self, setup: bytes) -> None:
        """Allocates all memory.

        Args:
            setup: a ReplaySetup's bytes.

        Raises:
            UserError: If there is not enough memory on this node.
        """
        made: ReplaySetup = load_setup(setup)
        self._summaries, self._edges = SlotSummaries(made.layout), SlotSummaries(made.layout, edges=True)
        self._blocks = SampleBlocks(made)
        self._keys = KeyPrograms(made.agent)
        rows = made.layout.shape.num_rows
        opened = (open_learner_journal(made.journal, made.layout.shape, host * rows) for host in range(made.num_hosts))
        self._journals = [journal for journal in opened if journal is not None]
        replay = LocalReplayClient(made.agent.data, made.shapes, _IDLE_SECONDS, 2 * self._blocks.most)
        with self._changed:
            self._layout, self._key_impl, self._replay = made.layout, made.key_impl, replay
            self._changed.notify_all()
        if self._closed:
            replay.close()

    def stage(self, host: int, incarnation: int, sequence: int, memory: np.ndarray) -> tuple[int, np.ndarray]:
        """Takes a slot in, which is inserted when its turn has come.

        Args:
            host: Host that made it.
            incarnation: Incarnation of that host.
            sequence: Sequence of the slot.
            memory: [slot_bytes] uint8, which stays as it is for as long as there is a reference to it.

        Returns:
            The sequence, and the slot's summary (`SlotSummaries`).
        """
        self._started_client()
        summary = self._summaries.pack(memory)
        with self._changed:
            self._staged[host, incarnation, sequence] = memory
            self._received_bytes += memory.nbytes
        return sequence, summary

    def begin(self, sequence: int, incarnations: Sequence[int], key_data: np.ndarray) -> dict[str, float]:
        """Inserts a slot of every host, and has the samples drawn that they make due.

        Args:
            sequence: Sequence of the slots.
            incarnations: Incarnations of each host when it made its slot.
            key_data: Data of the update's key, uint32.

        Returns:
            `stats`, with "due": the number of samples that are due.
        """
        replay = self._started_client()
        replay.end_update()
        with self._changed:
            wanted = [(host, made, sequence) for host, made in enumerate(incarnations)]
            memories = [self._staged.pop(key) for key in wanted]
            self._newest = dict(zip(wanted, memories, strict=True))
            self._staged = {key: memory for key, memory in self._staged.items() if key[2] > sequence}
        slots: list[SlotViews] = [view_slot(self._layout, memory.data) for memory in memories]
        key = jax.random.wrap_key_data(jax.numpy.asarray(key_data), impl=self._key_impl)
        due = replay.insert(trajectory_on_host(slots), UpdateKeys(self._keys, key))
        for journal, slot in zip(self._journals, slots, strict=False):
            journal.note(sequence, slot)
        return {"due": float(due), **self.stats()}

    def edges(self, host: int, incarnation: int, sequence: int) -> np.ndarray:
        """Returns a summary with the first and last observations of a slot that is staged or was inserted last."""
        key = (host, incarnation, sequence)
        with self._changed:
            memory = self._staged[key] if key in self._staged else self._newest[key]
        return self._edges.pack(memory)

    def sample(self) -> np.ndarray:
        """Returns the next sample, as soon as it is drawn, and those after it that are drawn already (`SampleBlocks`)."""
        replay = self._started_client()
        with self._drawing:
            samples = replay.get_many(self._blocks.most)
            first, self._next_sample = self._next_sample, self._next_sample + len(samples)
        return self._blocks.pack(first, samples)

    def give(self, first: int, priorities: np.ndarray) -> None:
        """Takes in the priorities [k, N] float32 of samples number `first` and on."""
        replay = self._started_client()
        with self._giving:
            self._early |= {first + place: priority for place, priority in enumerate(priorities)}
            while self._next_priorities in self._early:
                replay.update_priorities(self._early.pop(self._next_priorities))
                self._next_priorities += 1

    def finish(self) -> dict[str, float]:
        """Ends an update and returns `stats`; all its samples are drawn and the priorities for the next draws are stored."""
        self._started_client().end_update()
        return self.stats()

    def stats(self) -> dict[str, float]:
        """Returns the stored env steps, stale priorities, seconds of work, bytes of received slots, and what the process uses."""
        replay = self._started_client()
        return {
            "num_steps": float(replay.num_steps),
            "num_stale": float(replay.num_stale),
            "busy_seconds": replay.totals()["replay/busy_seconds"],
            "received_bytes": float(self._received_bytes),
            **usage_totals(),
        }

    def save(self) -> int:
        """Prepares all stored steps for saving, between two updates; returns the number of parts."""
        replay = self._started_client()
        replay.end_update()
        self._saving = bytes_of_leaves(replay.to_arrays())
        return num_parts(sum(array.nbytes for array in self._saving))

    def saved_part(self, number: int) -> tuple[int, np.ndarray]:
        """Returns the part's number and bytes, [at most PART_BYTES] uint8, of the leaves of `ReplayClient.to_arrays` in order."""
        part = np.empty(min(PART_BYTES, sum(array.nbytes for array in self._saving) - number * PART_BYTES), np.uint8)
        copy_part(self._saving, number, part, out=True)
        return number, part

    def restore_part(self, number: int, part: np.ndarray) -> None:
        """Takes a part in, before the first update; as `saved_part` gave it."""
        with self._changed:
            if not self._saving:
                self._restored: Any = self._started_client().writable_arrays()
                self._saving = bytes_of_leaves(self._restored)
        copy_part(self._saving, number, np.asarray(part), out=False)

    def restore(self) -> None:
        """Restores the buffer from the parts that have come."""
        self._started_client().restore(self._restored)
        self._saving, self._restored = [], None

    def close(self) -> None:
        """Ends its thread; idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            replay = self._replay
        if replay is not None:
            replay.close()
            for journal in self._journals:
                journal.close()

    def _started_client(self) -> LocalReplayClient:
        """Waits for the replay client and returns it."""
        with self._changed:
            self._changed.wait_for(lambda: self._replay is not None or self._closed, _IDLE_SECONDS)
            if self._replay is None or self._closed:
                raise RuntimeError(_CLOSED)
            return self._replay


def num_parts(num_bytes: int) -> int:
    """Returns the number of parts of that many bytes."""
    return -(-num_bytes // PART_BYTES)


def copy_part(arrays: Sequence[np.ndarray], number: int, part: np.ndarray, out: bool) -> None:
    """Copies a part out of arrays of bytes that are thought of as one behind the other, or into them.

    Args:
        arrays: [...] uint8 each.
        number: Number of the part, of PART_BYTES each.
        part: [n] uint8.
        out: whether the part is written, and the arrays are read.
    """
    begin, place = number * PART_BYTES, 0
    for array in arrays:
        first, last = max(begin, place) - place, min(begin + len(part), place + len(array)) - place
        if first < last:
            inside = slice(place + first - begin, place + last - begin)
            if out:
                part[inside] = array[first:last]
            else:
                array[first:last] = part[inside]
        place += len(array)


def bytes_of_leaves(tree: Any) -> list[np.ndarray]:
    """Returns the leaves of a tree of C-contiguous arrays as views of their bytes, in order."""
    return [np.asarray(leaf).reshape(-1).view(np.uint8) for leaf in jax.tree.leaves(tree)]
