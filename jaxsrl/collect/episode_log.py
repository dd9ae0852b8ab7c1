"""Actions of every row since its current episode started: enough to replay it, and so to resume bit-for-bit.

Environments cannot be saved in general, but an episode is determined by its seed and its actions. So a checkpoint holds, for
each row, which episode it is in and the actions so far; a resumed run replays them.
"""

from collections import deque

import numpy as np

from envpool_bridge.envs.protocol import EpisodeReset
from envpool_bridge.shm.layout import field_name
from envpool_bridge.shm.slots import SlotViews
from envpool_bridge.spec.encoding import concatenated
from envpool_bridge.spec.specs import EnvSpec, SpecTree, zeros_of
from envpool_bridge.spec.tree import Tree, items, leaves, map_leaves, take, unflatten, write

MAX_BYTES = 2**29
"""Actions kept by one process, of all its rows together. A checkpoint takes up to three times as much while it is written."""
_MAX_STEPS = 200_000


class EpisodeLog:
    """Episodes and actions of B rows. Fed with every slot, in order.

    Attributes:
        episodes: [B] int64, the episode that each row is in.
        end_step: of the run, that the next slot starts with.
        restarted: [B] bool, rows whose saved episode was too long to be replayed: they started the next one.
    """

    def __init__(
        self,
        num_rows: int,
        first_step: int,
        spec: EnvSpec,
        max_steps: int = _MAX_STEPS,
        max_bytes: int = MAX_BYTES,
        agent_state: SpecTree = (),
    ) -> None:
        """Starts every row in its episode 0.

        Args:
            num_rows: B.
            first_step: of the run, that the next slot starts with.
            spec: of a row.
            max_steps: actions kept per row; a longer episode is not replayed, its row starts a new one.
            max_bytes: actions kept of all rows together; likewise.
            agent_state: recurrent state of a row, a tree of ArraySpec.
        """
        self.episodes = np.zeros(num_rows, np.int64)
        self.end_step = first_step
        self.restarted = np.zeros(num_rows, bool)
        self._begins = np.full(num_rows, first_step, np.int64)  # step whose observation is the first of the episode
        self._spec = spec
        step_bytes = sum(leaf.nbytes for leaf in leaves(zeros_of(spec.action, (num_rows,))))
        self._max_steps = min(max_steps, max_bytes // max(1, step_bytes))
        self._blocks: deque[tuple[int, Tree]] = deque()  # (first step, actions [N, B, ...] a leaf)
        self.last_observation: Tree | None = None
        self.agent_state: Tree | None = None  # [B, ...] a leaf, after the last step; None before any
        self._agent_state_spec = agent_state

    def observe(self, slot: SlotViews) -> None:
        """Records a full slot; copies its actions."""
        length = len(slot.valid)
        self._blocks.append((self.end_step, map_leaves(np.copy, slot.action)))
        # A row that could not be replayed starts an episode with the first observation after a resume.
        self._begins[slot.is_first[0]] = self.end_step
        resets = slot.is_first[1:]  # [T, B]; not ~valid: the steps of an agent that is not there are not valid either
        any_reset = resets.any(0)
        last = length - 1 - np.argmax(resets[::-1], axis=0)
        self._begins = np.where(any_reset, self.end_step + last + 1, self._begins)
        self.episodes += resets.sum(0)
        self.end_step += length
        self.last_observation = map_leaves(lambda array: array[-1].copy(), slot.observation)
        self.agent_state = map_leaves(lambda array: array[1].copy(), slot.agent_state)
        kept = self._begins[self._begins >= self.end_step - self._max_steps]
        oldest = int(kept.min(initial=self.end_step))
        while self._blocks and self._blocks[0][0] + _length(self._blocks[0][1]) <= oldest:
            self._blocks.popleft()

    def fits(self, arrays: dict[str, np.ndarray]) -> bool:
        """Returns whether `arrays` have the names, shapes and dtypes that `restore` needs."""
        rows = len(self.episodes)
        if "lengths" not in arrays:
            return False
        wanted = {"episodes": np.zeros(rows, np.int64), "lengths": np.zeros(rows, np.int64)}
        wanted |= _named("observation", zeros_of(self._spec.observation, (rows,)))
        wanted |= _named("agent_state", zeros_of(self._agent_state_spec, (rows,)))
        played = int(np.maximum(arrays["lengths"], 0).sum())
        wanted |= _named("actions", zeros_of(self._spec.action, (played,))) if played else {}
        return all(
            name in arrays and (arrays[name].shape, arrays[name].dtype) == (value.shape, value.dtype)
            for name, value in wanted.items()
        )

    def to_arrays(self) -> dict[str, np.ndarray]:
        """The log as arrays.

        `episodes` [B], `lengths` [B] (-1: too long to play again); `actions` [sum of lengths, ...], `observation` and
        `agent_state` [B, ...], leaf by leaf.
        """
        kept = self._blocks[0][0] if self._blocks else self.end_step
        lengths = np.where(self._begins >= kept, self.end_step - self._begins, -1)
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
        self.restarted = lengths < 0
        self.episodes = arrays["episodes"] + self.restarted
        lengths = np.maximum(lengths, 0)
        self._begins = self.end_step - lengths
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
            self._blocks.append((self.end_step - longest, block))
        return EpisodeReset(tuple(int(episode) for episode in self.episodes), tuple(actions))


def _length(block: Tree) -> int:
    return len(leaves(block)[0])


def _named(name: str, tree: Tree) -> dict[str, np.ndarray]:
    return {field_name(name, path): leaf for path, leaf in items(tree)}


def _tree_of(name: str, spec: SpecTree, arrays: dict[str, np.ndarray]) -> Tree | None:
    """The tree that `_named` took apart; None if it is not there."""
    names = [field_name(name, path) for path, _ in items(spec)]
    return unflatten(spec, [arrays[leaf] for leaf in names]) if names and names[0] in arrays else None
