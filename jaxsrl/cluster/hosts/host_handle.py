"""Handle of one environment host: its calls, the slots received from it, and how its successor resumes."""

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from envpool_bridge.envs.protocol import EpisodeReset
from envpool_bridge.faults.journal import open_learner_journal
from envpool_bridge.shm.layout import SlotLayout
from envpool_bridge.shm.slots import SlotViews, starts_of_envs
from envpool_bridge.spec.tree import map_leaves
from jaxsrl.cluster.handle import Handle
from jaxsrl.cluster.hosts.resumed_rows import FollowingSource, last_seen
from jaxsrl.cluster.protocol.bundles import HOSTS
from jaxsrl.cluster.protocol.engine import Call, Engine, RemoteHost
from jaxsrl.cluster.protocol.published_params import PublishedVersions
from jaxsrl.cluster.protocol.setup import HostSetup, make_setup
from jaxsrl.collect.collector import CollectorConfig

if TYPE_CHECKING:
    from jaxsrl.cluster.replay.client import RemoteReplayClient


class HostHandle(Handle[RemoteHost]):
    """One environment host of a plan.

    Attributes:
        slots: received and not released, by sequence.
        next_sequence: Next sequence to be received.
        pending: calls for slots.
    """

    kind = "environment host"
    room = HOSTS
    advice = "--pool.num-workers"

    def __init__(
        self,
        config: CollectorConfig,
        layout: SlotLayout,
        index: int,
        node: str,
        replay: "RemoteReplayClient | None" = None,
    ) -> None:
        shape = config.plan.shape
        super().__init__(config.supervision, index, node, slice(index * shape.num_rows, (index + 1) * shape.num_rows))
        self.slots: dict[int, SlotViews] = {}
        self.next_sequence = config.first_sequence
        self.pending: list[Call] = []
        self._config, self._layout = config, layout
        self._early: dict[int, SlotViews] = {}  # received before those that precede them
        self._newest: SlotViews | None = None
        self._episodes = np.zeros(shape.num_rows, np.int64)
        self._received_at_start = self.next_sequence
        self._replay = replay
        self._journal = open_learner_journal(config.journal if replay is None else "", shape, self.rows.start)

    @property
    def made_progress(self) -> bool:
        return self.next_sequence > self._received_at_start

    def spawn_process(self, engine: Engine, node: str) -> RemoteHost:
        return engine.spawn(self.index, node)

    def start(self, reset: EpisodeReset, versions: PublishedVersions) -> None:
        """Starts where the learner is, and requests as many slots as may be on their way.

        Args:
            reset: Reset of all rows of the run, at its start.
            versions: Versions of the parameters that it may need.
        """
        setup = self._setup(reset, versions.held[0][0])
        self._received_at_start = self.next_sequence
        self.start_with(setup, None if self._config.plan.calls_servers else versions)
        for _ in range(self._config.plan.shape.num_slots - len(self.slots)):
            self.request_slot()

    def request_slot(self) -> None:
        """Gives the host a credit: it may send one slot more."""
        if self.remote is None:
            return
        call = self.remote.call("slots", "next_slot")
        self.pending.append(call if self._replay is None else self._replay.fetch(self.index, self.incarnation, call))

    def calls(self) -> list[Call]:
        return [*super().calls(), *self.pending]

    def receive(self, sequence: int, slot: SlotViews) -> None:
        """Takes a slot: from now on it is the learner's, even if the host is lost.

        Ray runs a host's calls one after the other, but their answers may overtake each other: one that comes early waits for
        those before it, and is lost with the host if they are.

        Raises:
            RuntimeError: If it is not among those that were asked for (a bug of the host).
        """
        end = min(self.slots, default=self.next_sequence) + self._config.plan.shape.num_slots
        if not self.next_sequence <= sequence < end or sequence in self._early:
            raise RuntimeError(f"host {self.index} sent slot {sequence}: expected {self.next_sequence} to {end - 1}")
        self._early[sequence] = slot
        while self.next_sequence in self._early:
            slot = self._early.pop(self.next_sequence)
            self.slots[self.next_sequence] = self._newest = slot
            self._episodes += starts_of_envs(slot.is_first[1:], self._layout.spec.rows_per_env).sum(0)
            self.next_sequence += 1

    def complete_slot(self, sequence: int) -> SlotViews:
        """Returns a slot that was received, with the observation that it starts with."""
        return self.slots[sequence] if self._replay is None else self._replay.edges(self.index, sequence)

    def release(self, sequence: int) -> None:
        """Forgets a slot, and gives its credit back."""
        slot = self.slots.pop(sequence)
        if self._journal is not None:
            self._journal.note(sequence, slot)
        self.request_slot()

    def kill(self) -> None:
        super().kill()
        self.pending, self._early = [], {}

    def close(self) -> None:
        """Ends it; idempotent."""
        self.kill()
        self.slots, self._newest = {}, None
        if self._journal is not None:
            self._journal.close()

    def _setup(self, reset: EpisodeReset, first_version: int) -> HostSetup:
        config, slot = self._config, self._newest
        if slot is not None and self._replay is not None:
            slot = self._replay.edges(self.index, self.next_sequence - 1)
        journal = f"{config.journal}/host-{self.index}-{self.incarnation}" if config.journal else ""
        config = dataclasses.replace(config, first_sequence=self.next_sequence, journal=journal)
        if slot is not None:
            # The rows resume as those of a worker whose predecessor died between two slots.
            seen = last_seen(self._layout, slot, self.rows.start)
            state = map_leaves(
                lambda whole, mine: _with_rows(whole, mine[1], self.rows), config.agent_state, slot.agent_state
            )
            source = FollowingSource(config.env_source, seen)
            config = dataclasses.replace(config, env_source=source, agent_state=state)
            episodes = np.asarray(reset.episodes[self.rows]) + self._episodes
            reset = _reset_at(reset, self.rows, episodes.tolist())
        return make_setup(config, self.index, first_version, reset, self.incarnation)


def _with_rows(whole: np.ndarray, mine: np.ndarray, rows: slice) -> np.ndarray:
    changed = np.array(whole)
    changed[rows] = mine
    return changed


def _reset_at(reset: EpisodeReset, rows: slice, episodes: list[int]) -> EpisodeReset:
    """Returns the reset with these rows in these episodes, of which nothing is to be played again."""
    every, actions = list(reset.episodes), list(reset.actions)
    every[rows] = episodes
    actions[rows] = [None] * len(episodes)
    return EpisodeReset(tuple(every), tuple(actions))
