"""Replay on a node of its own, behind a few calls. It knows no engine.

Slots come from environment hosts and lie here until the learner's process says that they are to be inserted.
Calls say which slots or priorities they are about, and answers which sample: so they may overtake each other.
"""

import pickle
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from envpool_bridge.faults.journal import open_learner_journal
from envpool_bridge.shm.slot_summary import SlotSummaries
from envpool_bridge.shm.slots import SlotViews, view_slot
from jaxsrl.cluster.replay.setup import PART_BYTES, ReplaySetup, SampleBlocks
from jaxsrl.learner.host_replay import trajectory_on_host
from jaxsrl.machine.cpu_dispatch import use_synchronous_cpu_dispatch
from jaxsrl.replay.client import LocalReplayClient, UpdateKeys
from jaxsrl.replay.on_device import step_keys

_IDLE_SECONDS = 1e6  # the learner's process has the deadlines, and ends this one
_CLOSED = "replay was closed"


class ReplayHost:
    """Experience of a run, and a thread that gathers samples ahead. Thread-safety: any threads; calls of one kind are in turn."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._setup: ReplaySetup | None = None
        self._experience: LocalReplayClient | None = None
        self._closed = False
        self._staged: dict[tuple[int, int, int], np.ndarray] = {}  # by host, beginning and sequence
        self._newest: dict[tuple[int, int, int], np.ndarray] = {}  # that were inserted last, likewise
        self._next_priorities = 0  # number of the sample whose priorities come next
        self._early: dict[int, np.ndarray] = {}  # priorities [N] that came before their turn, by that number
        self._next_sample, self._drawing = 0, threading.Lock()
        self._giving = threading.Lock()
        self._saving: list[np.ndarray] = []
        self._received_bytes = self._samples = 0

    def start(self, setup: bytes) -> None:
        """Allocates all memory.

        Args:
            setup: a ReplaySetup's bytes.

        Raises:
            UserError: there is not enough memory on this node.
        """
        made: ReplaySetup = pickle.loads(setup)
        use_synchronous_cpu_dispatch()
        for name, value in made.jax_settings.items():
            jax.config.update(name, value)
        self._summaries, self._edges = SlotSummaries(made.layout), SlotSummaries(made.layout, edges=True)
        self._blocks = SampleBlocks(made)
        self._split = jax.jit(partial(step_keys, made.agent))
        rows = made.layout.shape.num_rows
        opened = (open_learner_journal(made.journal, made.layout.shape, host * rows) for host in range(made.num_hosts))
        self._journals = [journal for journal in opened if journal is not None]
        experience = LocalReplayClient(made.agent.data, made.shapes, _IDLE_SECONDS, 2 * self._blocks.most)
        with self._changed:
            self._setup, self._experience = made, experience
            self._changed.notify_all()
        if self._closed:
            experience.close()

    def stage(self, host: int, beginning: int, sequence: int, memory: np.ndarray) -> tuple[int, np.ndarray]:
        """Takes a slot in, which is inserted when its turn has come.

        Args:
            host: that made it.
            beginning: of that host, the earlier ones of which have ended.
            sequence: of the slot.
            memory: [slot_bytes] uint8, which stays as it is for as long as there is a reference to it.

        Returns:
            The sequence, and the slot's summary (`SlotSummaries`).
        """
        self._begun()
        summary = self._summaries.pack(memory)
        with self._changed:
            self._staged[host, beginning, sequence] = memory
            self._received_bytes += memory.nbytes
        return sequence, summary

    def begin(self, sequence: int, beginnings: Sequence[int], key_data: np.ndarray) -> np.ndarray:
        """Inserts a slot of every host, and has the samples drawn that they make due.

        Args:
            sequence: of the slots.
            beginnings: of each host, of which its slot is.
            key_data: of the update's key, uint32.

        Returns:
            What `counts` does, behind the number of samples that are due.
        """
        experience, setup = self._begun(), self._made
        experience.end_update()
        with self._changed:
            wanted = [(host, made, sequence) for host, made in enumerate(beginnings)]
            memories = [self._staged.pop(key) for key in wanted]
            self._newest = dict(zip(wanted, memories, strict=True))
            self._staged = {key: memory for key, memory in self._staged.items() if key[2] > sequence}
        slots: list[SlotViews] = [view_slot(setup.layout, memory.data) for memory in memories]
        key = jax.random.wrap_key_data(jax.numpy.asarray(key_data), impl=setup.key_impl)
        due = experience.insert(trajectory_on_host(slots), UpdateKeys(self._split, key))
        for journal, slot in zip(self._journals, slots, strict=False):
            journal.note(sequence, slot)
        return np.concatenate([[float(due)], self.counts()])

    def edges(self, host: int, beginning: int, sequence: int) -> np.ndarray:
        """Returns a summary with the observations that a slot begins and ends with; of one that is staged, or was inserted last."""
        key = (host, beginning, sequence)
        with self._changed:
            memory = self._staged[key] if key in self._staged else self._newest[key]
        return self._edges.pack(memory)

    def sample(self) -> np.ndarray:
        """Returns the next sample, as soon as it is drawn, and those after it that are drawn already (`SampleBlocks`)."""
        experience = self._begun()
        with self._drawing:
            samples = experience.get_many(self._blocks.most)
            first, self._next_sample = self._next_sample, self._next_sample + len(samples)
        self._samples += len(samples)
        return self._blocks.pack(first, samples)

    def give(self, first: int, priorities: np.ndarray) -> None:
        """Takes in the priorities [k, N] float32 of samples number `first` and on."""
        experience = self._begun()
        with self._giving:
            self._early |= {first + place: priority for place, priority in enumerate(priorities)}
            while self._next_priorities in self._early:
                experience.update_priorities(self._early.pop(self._next_priorities))
                self._next_priorities += 1

    def finish(self) -> np.ndarray:
        """`counts`, once this update's samples are drawn and the priorities are in that the next update's draws know."""
        self._begun().end_update()
        return self.counts()

    def counts(self) -> np.ndarray:
        """[5] float64: env steps kept, stale priorities, seconds worked, bytes of slots received, samples handed out."""
        experience = self._begun()
        busy = experience.totals()["replay/busy_seconds"]
        numbers = [experience.num_steps, experience.num_stale, busy, self._received_bytes, self._samples]
        return np.array(numbers, np.float64)

    def save(self) -> int:
        """Gets ready to hand out all experience between two updates; returns how many parts it has."""
        experience = self._begun()
        experience.end_update()
        self._saving = bytes_of_leaves(experience.to_arrays())
        return num_parts(sum(array.nbytes for array in self._saving))

    def saved_part(self, number: int) -> tuple[int, np.ndarray]:
        """(number, [PART_BYTES] uint8 or the rest): the leaves of `ReplayClient.to_arrays`, one after the other."""
        part = np.empty(min(PART_BYTES, sum(array.nbytes for array in self._saving) - number * PART_BYTES), np.uint8)
        copy_part(self._saving, number, part, out=True)
        return number, part

    def restore_part(self, number: int, part: np.ndarray) -> None:
        """Takes a part in, before the first update; as `saved_part` gave it."""
        with self._changed:
            if not self._saving:
                self._restored: Any = self._begun().writable_arrays()
                self._saving = bytes_of_leaves(self._restored)
        copy_part(self._saving, number, np.asarray(part), out=False)

    def restore(self) -> None:
        """Goes on from the parts that have come."""
        self._begun().restore(self._restored)
        self._saving, self._restored = [], None

    def close(self) -> None:
        """Ends its thread; idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            experience = self._experience
        if experience is not None:
            experience.close()
            for journal in self._journals:
                journal.close()

    @property
    def _made(self) -> ReplaySetup:
        if self._setup is None:
            raise RuntimeError("start comes first")
        return self._setup

    def _begun(self) -> LocalReplayClient:
        """Returns the experience, once there is one."""
        with self._changed:
            self._changed.wait_for(lambda: self._experience is not None or self._closed, _IDLE_SECONDS)
            if self._experience is None or self._closed:
                raise RuntimeError(_CLOSED)
            return self._experience


def num_parts(num_bytes: int) -> int:
    """Parts that so many bytes are handed over in."""
    return -(-num_bytes // PART_BYTES)


def copy_part(arrays: Sequence[np.ndarray], number: int, part: np.ndarray, out: bool) -> None:
    """Copies a part out of arrays of bytes that are thought of as one behind the other, or into them.

    Args:
        arrays: [...] uint8 each.
        number: of the part, of PART_BYTES each.
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
    return [_bytes_of(leaf) for leaf in jax.tree.leaves(tree)]


def _bytes_of(array: np.ndarray) -> np.ndarray:
    return np.asarray(array).reshape(-1).view(np.uint8)
