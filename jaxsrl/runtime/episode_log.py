"""What every row has done since its current episode began: enough to play it again, and so to resume to the bit.

Environments cannot be saved in general, but an episode is determined by its seed and its actions. So a checkpoint holds, for
each row, which episode it is in and the actions so far; a resumed run plays them again.
"""

from collections import deque

import numpy as np

from envpool_bridge.adapters.rows import EpisodeReset
from envpool_bridge.layout import field_name
from envpool_bridge.slot_views import SlotViews
from envpool_bridge.specs import EnvSpec, SpecTree, zeros_of
from envpool_bridge.stored_form import concatenated
from envpool_bridge.tree import Tree, items, leaves, map_leaves, take, unflatten, write


class EpisodeLog:
    """Episodes and actions of B rows. Fed with every slot, in order."""

    def __init__(
        self,
        num_rows: int,
        first_step: int,
        spec: EnvSpec,
        max_steps: int = 200_000,
        agent_state: SpecTree = (),
    ) -> None:
        """Every row at the beginning of its episode 0.

        Args:
            num_rows: B.
            first_step: of the run, that the next slot begins with.
            spec: of a row.
            max_steps: actions kept a row; a longer episode is not played again, its row begins a new one.
            agent_state: what a row's policy remembers, a tree of ArraySpec.
        """
        self.episodes = np.zeros(num_rows, np.int64)
        self._begins = np.full(num_rows, first_step, np.int64)  # step whose observation began the episode
        self._end = first_step
        self._spec = spec
        self._max_steps = max_steps
        self._blocks: deque[tuple[int, Tree]] = deque()  # (first step, actions [N, B, ...] a leaf)
        self.last_observation: Tree | None = None
        self.agent_state: Tree | None = None  # [B, ...] a leaf, after the last step; None before any
        self._agent_state_spec = agent_state

    def observe(self, slot: SlotViews) -> None:
        """Takes in a full slot: copies its actions."""
        length = len(slot.valid)
        self._blocks.append((self._end, map_leaves(np.copy, slot.action)))
        resets = slot.is_first[1:]  # [T, B]; not ~valid: the steps of an agent that is not there are not valid either
        any_reset = resets.any(0)
        last = length - 1 - np.argmax(resets[::-1], axis=0)
        self._begins = np.where(any_reset, self._end + last + 1, self._begins)
        self.episodes += resets.sum(0)
        self._end += length
        self.last_observation = map_leaves(lambda array: array[-1].copy(), slot.observation)
        self.agent_state = map_leaves(lambda array: array[1].copy(), slot.agent_state)
        oldest = max(int(self._begins.min()), self._end - self._max_steps)
        while self._blocks and self._blocks[0][0] + _length(self._blocks[0][1]) <= oldest:
            self._blocks.popleft()

    def to_arrays(self) -> dict[str, np.ndarray]:
        """The log as arrays.

        `episodes` [B], `lengths` [B] (-1: too long to play again); `actions` [sum of lengths, ...], `observation` and
        `agent_state` [B, ...], leaf by leaf.
        """
        kept = self._blocks[0][0] if self._blocks else self._end
        lengths = np.where(self._begins >= kept, self._end - self._begins, -1)
        arrays = {"episodes": self.episodes.copy(), "lengths": lengths}
        if self._blocks and (lengths > 0).any():
            actions = concatenated([block for _, block in self._blocks])
            begins = {row: begin - kept for row, begin in enumerate(self._begins) if lengths[row] > 0}
            played = concatenated([take(actions, (slice(begin, None), row)) for row, begin in begins.items()])
            arrays |= _named("actions", played)
        if self.last_observation is not None:
            arrays |= _named("observation", self.last_observation) | _named("agent_state", self.agent_state)
        return arrays

    def restore(self, arrays: dict[str, np.ndarray]) -> EpisodeReset:
        """Continues from `to_arrays`; returns what the environments must play again."""
        lengths = arrays["lengths"]
        self.episodes = arrays["episodes"] + (lengths < 0)
        lengths = np.maximum(lengths, 0)
        self._begins = self._end - lengths
        self.last_observation = _tree_of("observation", self._spec.observation, arrays)
        self.agent_state = _tree_of("agent_state", self._agent_state_spec, arrays)
        actions: list[Tree | None] = [None] * len(lengths)
        longest = int(lengths.max(initial=0))
        if longest:
            flat = _tree_of("actions", self._spec.action, arrays)
            block = zeros_of(self._spec.action, (longest, len(lengths)))
            ends = np.cumsum(lengths)
            for row, (end, length) in enumerate(zip(ends, lengths, strict=True)):
                if length:
                    actions[row] = take(flat, slice(end - length, end))
                    write(take(block, (slice(longest - length, None), row)), actions[row])
            self._blocks.append((self._end - longest, block))
        return EpisodeReset(tuple(int(episode) for episode in self.episodes), tuple(actions))


def _length(block: Tree) -> int:
    return len(leaves(block)[0])


def _named(name: str, tree: Tree) -> dict[str, np.ndarray]:
    return {field_name(name, path): leaf for path, leaf in items(tree)}


def _tree_of(name: str, spec: SpecTree, arrays: dict[str, np.ndarray]) -> Tree | None:
    """The tree that `_named` took apart; None if it is not there."""
    names = [field_name(name, path) for path, _ in items(spec)]
    return unflatten(spec, [arrays[leaf] for leaf in names]) if names and names[0] in arrays else None
