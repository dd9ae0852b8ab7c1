"""What the learner's process knows of one environment host: its calls, the slots that came from it, and how to follow it."""

import dataclasses
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from envpool_bridge.envs.protocol import EpisodeReset
from envpool_bridge.faults.journal import open_learner_journal
from envpool_bridge.options import RestartBudget
from envpool_bridge.shm.layout import SlotLayout
from envpool_bridge.shm.packed_arrays import ParamsLayout
from envpool_bridge.shm.slots import SlotViews
from envpool_bridge.spec.tree import Tree, map_leaves
from jaxsrl.cluster.hosts.resumed_rows import FollowingSource, last_seen
from jaxsrl.cluster.protocol.engine import Call, Engine, RemoteHost
from jaxsrl.cluster.protocol.published_params import PublishedVersions
from jaxsrl.cluster.protocol.setup import HostSetup, make_setup
from jaxsrl.collect.collector import CollectorConfig

if TYPE_CHECKING:
    from jaxsrl.cluster.replay.client import RemoteExperience


class HostRecord:
    """One host of a plan, through all of its beginnings. One thread, the learner's.

    Attributes:
        index: of the plan's replicas.
        node: that it is on, or was on last.
        slots: received and not released, by sequence.
        next_sequence: that is to be received.
        remote: the host; None while there is none.
        has_begun: whether it was told to start, since it was spawned.
        started: the call that starts it, until that has ended.
        pending: calls for slots.
        told: calls that bring versions of the parameters.
        stats: newest answer.
        asked: the question for stats that was not answered yet, and when it was put.
        due: when it is to be started again; None unless it is lost.
        lost_at: when it was.
        budget: of starts.
    """

    def __init__(
        self,
        config: CollectorConfig,
        layout: SlotLayout,
        params: ParamsLayout,
        index: int,
        node: str,
        replay: "RemoteExperience | None" = None,
    ) -> None:
        """Not started; `replay` is where its slots go instead of here, which then writes the journal."""
        options, shape = config.supervision, config.plan.shape
        self.index, self.node = index, node
        self.rows = slice(index * shape.num_rows, (index + 1) * shape.num_rows)
        self.slots: dict[int, SlotViews] = {}
        self.next_sequence = config.first_sequence
        self.remote: RemoteHost | None = None
        self.has_begun = False
        self.started: Call | None = None
        self.pending: list[Call] = []
        self.told: list[Call] = []
        self.stats: dict[str, float] = {}
        self.past: dict[str, float] = {}  # of its earlier beginnings
        self.asked: tuple[Call, float] | None = None
        self.due: float | None = None
        self.lost_at = 0.0
        self.budget = RestartBudget(options.max_restarts, options.window_seconds, options.max_backoff_seconds)
        self._config, self._layout, self._params = config, layout, params
        self._early: dict[int, SlotViews] = {}  # that came before those that precede them
        self._newest: SlotViews | None = None
        self._episodes = np.zeros(shape.num_rows, np.int64)
        self._received_at_start = self.next_sequence
        self._beginnings, self._replay = 0, replay
        self._journal = open_learner_journal(config.journal if replay is None else "", shape, self.rows.start)

    @property
    def beginning(self) -> int:
        """Number of its newest beginning, from 1; 0 before any."""
        return self._beginnings

    @property
    def got_on(self) -> bool:
        """Whether anything came from it since its last beginning."""
        return self.next_sequence > self._received_at_start

    def spawn(self, engine: Engine, node: str) -> None:
        """Begins to start its process."""
        self.node, self.due = node, None
        self.remote = engine.spawn(self.index, node)

    def begin(self, reset: EpisodeReset, versions: PublishedVersions) -> None:
        """Has it begin where the learner is, and asks for as many slots as it may have on their way.

        Args:
            reset: of all rows of the run, as it began.
            versions: that it may have to act with.
        """
        if self.remote is None:
            raise RuntimeError("spawn comes first")
        held = versions.held
        setup = self._setup(reset, held[0][0])
        self._beginnings += 1
        self.has_begun = True
        self._received_at_start = self.next_sequence
        self.started = self.remote.call("control", "start", setup.to_bytes())
        if not self._config.plan.calls_servers:
            for version, put in held:
                self.tell(version, put)
        self.asked = None
        for _ in range(self._config.plan.shape.num_slots - len(self.slots)):
            self.ask_for_slot()

    def tell(self, version: int, put: Any) -> None:
        """Sends it a version of the parameters."""
        if self.remote is not None:
            self.told.append(self.remote.call("control", "publish", version, put))

    def ask_for_slot(self) -> None:
        """Gives the host a credit: it may send one slot more."""
        if self.remote is None:
            return
        call = self.remote.call("slots", "next_slot")
        self.pending.append(call if self._replay is None else self._replay.fetch(self.index, self._beginnings, call))

    def ask_for_stats(self) -> None:
        """Puts the question, unless one is under way."""
        if self.remote is not None and self.asked is None:
            self.asked = (self.remote.call("control", "stats"), time.monotonic())

    def calls(self) -> list[Call]:
        """Those that have not been taken in."""
        found = [*self.told, *self.pending]
        found += [self.started] if self.started is not None else []
        found += [self.asked[0]] if self.asked is not None else []
        return found

    def receive(self, sequence: int, slot: SlotViews) -> None:
        """Takes a slot in: from now on it is the learner's, whatever becomes of the host.

        Ray runs a host's calls one after the other, but their answers may overtake each other: one that comes early waits for
        those before it, and is lost with the host if they are.

        Raises:
            RuntimeError: it is not among those that were asked for (a bug of the host).
        """
        end = min(self.slots, default=self.next_sequence) + self._config.plan.shape.num_slots
        if not self.next_sequence <= sequence < end or sequence in self._early:
            raise RuntimeError(f"host {self.index} sent slot {sequence}: expected {self.next_sequence} to {end - 1}")
        self._early[sequence] = slot
        while self.next_sequence in self._early:
            slot = self._early.pop(self.next_sequence)
            self.slots[self.next_sequence] = self._newest = slot
            self._episodes += slot.is_first[1:].sum(0)
            self.next_sequence += 1

    def whole(self, sequence: int) -> SlotViews:
        """A slot that was received, with the observation that it begins with."""
        return self.slots[sequence] if self._replay is None else self._replay.edges(self.index, sequence)

    def release(self, sequence: int) -> None:
        """Forgets a slot, and gives its credit back."""
        slot = self.slots.pop(sequence)
        if self._journal is not None:
            self._journal.note(sequence, slot)
        self.ask_for_slot()

    def lose(self) -> None:
        """Makes sure that it is gone, with all that it had not handed over."""
        if self.remote is not None:
            self.remote.kill()
        self.remote, self.started, self.asked, self.has_begun = None, None, None, False
        self.pending, self.told, self._early = [], [], {}
        self.past = {name: self.past.get(name, 0.0) + value for name, value in self.stats.items()}
        self.stats, self.lost_at = {}, time.monotonic()

    def totals(self) -> dict[str, float]:
        """Its stats, with those of earlier beginnings."""
        return {name: self.stats.get(name, 0.0) + self.past.get(name, 0.0) for name in {**self.stats, **self.past}}

    def close(self) -> None:
        """Ends it; idempotent."""
        if self.remote is not None:
            self.remote.kill()
        self.remote, self.pending, self.told, self.started, self.asked = None, [], [], None, None
        self.slots, self._early, self._newest = {}, {}, None
        if self._journal is not None:
            self._journal.close()

    def _setup(self, reset: EpisodeReset, first_version: int) -> HostSetup:
        config, slot = self._config, self._newest
        if slot is not None and self._replay is not None:
            slot = self._replay.edges(self.index, self.next_sequence - 1)
        journal = f"{config.journal}/host-{self.index}-{self._beginnings}" if config.journal else ""
        config = dataclasses.replace(config, first_sequence=self.next_sequence, journal=journal)
        if slot is not None:
            # The rows go on as those of a worker do whose predecessor died between two slots.
            seen = last_seen(self._layout, slot, self.rows.start)
            state = map_leaves(
                lambda whole, mine: _with_rows(whole, mine[1], self.rows), config.agent_state, slot.agent_state
            )
            source = FollowingSource(config.env_source, seen)
            config = dataclasses.replace(config, env_source=source, agent_state=state)
            reset = _reset_at(
                reset,
                self.rows,
                [
                    first + count
                    for first, count in zip(reset.episodes[self.rows], self._episodes.tolist(), strict=True)
                ],
            )
        return make_setup(config, self.index, self._params, first_version, reset, self._beginnings)


def _with_rows(whole: np.ndarray, mine: np.ndarray, rows: slice) -> np.ndarray:
    changed = np.array(whole)
    changed[rows] = mine
    return changed


def _reset_at(reset: EpisodeReset, rows: slice, episodes: list[int]) -> EpisodeReset:
    """The reset with these rows in these episodes, of which nothing is to be played again."""
    every, actions = list(reset.episodes), list(reset.actions)
    every[rows] = episodes
    actions[rows] = [None] * len(episodes)
    return EpisodeReset(tuple(every), tuple(actions))


def describe(record: HostRecord) -> str:
    """The host in words, for messages."""
    return f"environment host {record.index} (rows {record.rows.start} to {record.rows.stop - 1}) on node {record.node}"


def joined_observation(records: list[HostRecord], sequence: int) -> Tree:
    """[B, *stored_shape] a leaf: what all rows showed first in a slot that every host has sent; a copy."""
    slots = [record.whole(sequence).observation for record in records]
    return map_leaves(lambda *arrays: np.concatenate([array[0] for array in arrays]), *slots)
