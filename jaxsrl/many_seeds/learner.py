"""Learners of members, whose updates one program computes together."""

from typing import Any

import jax
import numpy as np

from agents.api import LearnerState, Metrics
from jaxsrl.checkpoints.store import Arrays
from jaxsrl.device_loop.episode_totals import EpisodeSums
from jaxsrl.device_loop.loop import DispatchSize, RowsLearner
from jaxsrl.envs.protocol import JaxEnv
from jaxsrl.learner.finite_updates import SkipCounts
from jaxsrl.learner.finite_watch import FiniteWatch
from jaxsrl.many_seeds.program import MakeAgent, MembersProgram, MemberStart
from jaxsrl.many_seeds.turns import Turns
from jaxsrl.metrics.episodes import EpisodeTotals
from jaxsrl.replay.state import replace_learned


class MemberLearner(RowsLearner):
    """Learner of one member. Thread-safety: the thread of the member.

    Args:
        group: Group of the member.
        index: Index of the member in the group.
        num_updates: done so far.
        watch: counter of non-finite updates.
    """

    def __init__(self, group: "SeedGroup", index: int, num_updates: int, watch: FiniteWatch) -> None:
        super().__init__(num_updates)
        self._episodes: list[EpisodeSums] = []
        self._group, self._index, self._watch = group, index, watch
        self._final: LearnerState | None = None

    @property
    def state(self) -> LearnerState:  # pyright: ignore[reportIncompatibleVariableOverride]  read when it is needed
        return self._group.state(self._index) if self._final is None else self._final

    def advance(self, num_updates: int, every: int) -> None:
        self._group.advance(self._index, self._group.size.next_size(self.num_updates, num_updates, every))

    def receive(self, count: int, metrics: Metrics, skipped: SkipCounts, episodes: EpisodeSums, seconds: float) -> None:
        """Records what a dispatch has done.

        Args:
            count: updates.
            metrics: Metrics of the last one.
            skipped: counts of all of them.
            episodes: Episodes that finished, [B] each.
            seconds: Seconds of the dispatch.
        """
        if np.any(episodes.count):
            self._episodes.append(episodes)
        self.num_updates += count
        self.metrics = metrics
        self.stats.updates += count
        self.stats.busy_seconds += seconds
        self.too_many_nonfinite = self._watch.observe_all(skipped, count)
        self._watch.count_in(self.stats)

    def take_episodes(self, totals: EpisodeTotals) -> None:
        for sums in self._episodes:
            totals.add_rows(*map(np.asarray, (sums.count, sums.return_sum, sums.return_max, sums.length_sum)))
        self._episodes.clear()

    def save_arrays(self) -> Arrays:
        return self._group.rows(self._index)

    def restore_learned(self, learned: LearnerState) -> None:
        self._group.set_state(self._index, replace_learned(self.state, learned))
        self.too_many_nonfinite = False

    def keep_state(self) -> None:
        """Keeps the newest state, since the program continues without this member."""
        self._final = self.state


class SeedGroup:
    """Members that one program trains. Thread-safety: each member calls from its own thread, between `enter` and `leave`.

    Args:
        num_members: Number of members of the group.
        make_agent: returns the agent that acts and learns, with the values that differ by member; see `MembersProgram`.
        env: environment of every row.
        rollout_length: T.

    Attributes:
        size: updates of the next dispatch.
        learners: Learners by member, of those that have started.
    """

    def __init__(self, num_members: int, make_agent: MakeAgent, env: JaxEnv, rollout_length: int) -> None:
        self.size = DispatchSize()
        self.learners: dict[int, MemberLearner] = {}
        self._make_agent, self._env, self._rollout_length = make_agent, env, rollout_length
        self._turns = Turns(num_members, self._serve)
        self._program: MembersProgram | None = None
        self._positions: dict[int, int] = {}

    def enter(self, member: int) -> None:
        """Waits for the first turn of a member."""
        self._turns.enter(member)

    def leave(self, member: int) -> None:
        """Ends the part of a member, whose state stays as it is; idempotent."""
        learner = self.learners.get(member)
        try:
            # A failed dispatch has deleted the states, which it donated.
            if learner is not None and self._program is not None and not self._turns.has_failed:
                learner.keep_state()
        finally:
            self._turns.leave(member)

    def start(self, member: int, start: MemberStart, watch: FiniteWatch) -> MemberLearner:
        """Returns the learner of a member, once all members have started and the program is compiled."""
        self.learners[member] = MemberLearner(self, member, int(start.state.num_updates), watch)
        self._turns.request(member, start)
        return self.learners[member]

    def advance(self, member: int, num_updates: int) -> None:
        """Advances a member, together with the updates of the others."""
        self._turns.request(member, num_updates)

    def state(self, member: int) -> LearnerState:
        """Returns the learner state of a member."""
        return self._compiled.state(self._positions[member])

    def rows(self, member: int) -> Arrays:
        """Returns the rows of a member by name."""
        return self._compiled.rows(self._positions[member])

    def set_state(self, member: int, state: LearnerState) -> None:
        """Replaces the learner state of a member."""
        self._compiled.set_state(self._positions[member], state)

    @property
    def _compiled(self) -> MembersProgram:
        if self._program is None:
            raise RuntimeError("start comes first")
        return self._program

    def _serve(self, requests: dict[int, Any]) -> None:
        """Starts the program with the first request of each member, and advances it with later ones."""
        if self._program is None:
            # Members whose runs are complete never start.
            self._positions = {member: position for position, member in enumerate(sorted(requests))}
            starts, devices = [requests[member] for member in sorted(requests)], jax.local_devices()
            self._program = MembersProgram(self._make_agent, self._env, self._rollout_length, starts, devices)
            return
        counts = {self._positions[member]: count for member, count in requests.items()}
        *results, seconds = self._program.advance(counts)
        self.size.record(max(counts.values()), seconds)
        for member, count in requests.items():
            at = self._positions[member]
            metrics, skipped, episodes = jax.tree.map(lambda leaf, at=at: leaf[at], results)
            self.learners[member].receive(count, metrics, skipped, episodes, seconds)
