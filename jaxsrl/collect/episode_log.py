"""Actions of every row since its current episode started, which replay the episode for a bit-for-bit identical resume.

Environments cannot be saved in general, but seed and actions determine an episode. A checkpoint stores, for each row, the
index of its episode and the actions so far. A resumed run replays them.
"""

import dataclasses
from collections import deque

import numpy as np

from envpool_bridge.envs.protocol import EpisodeReset, has_stages
from envpool_bridge.shm.layout import field_name
from envpool_bridge.shm.slots import SlotViews, starts_of_envs
from envpool_bridge.spec.encoding import concatenated
from envpool_bridge.spec.specs import NEXT_LEVEL, EnvSpec, SpecTree, zeros_of
from envpool_bridge.spec.tree import Tree, items, leaves, map_leaves, take, unflatten, write
from jaxsrl.collect.stage_queue import StageQueue

MAX_BYTES = 2**29
"""Bytes of actions stored by one process for all its rows. Writing a checkpoint takes up to three times as much."""
_MAX_STEPS = 200_000


class EpisodeLog:
    """Episodes and actions of B rows, updated with every slot in order.

    Args:
        num_rows: B.
        first_step: step of the run at which the next slot starts.
        spec: spec of a row.
        max_steps: actions stored per row; a row with a longer episode starts a new one instead of a replay.
        max_bytes: bytes of actions stored for all rows together; same consequence.
        agent_state: recurrent state of a row, a tree of ArraySpec.

    Attributes:
        episodes: [B] int64, index of each row's episode: of its environment, also where the agent has joined late.
        end_step: step of the run at which the next slot starts.
        restarted: [B] bool, rows whose saved episode was too long for a replay: they started the next one.
        row_stages: [B] int64, stage or level of each row's episode; None where resets have none.
        stages: stages of the next slots; None where resets have no stage of the run.
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
        self.episodes = np.zeros(num_rows, np.int64)
        self.end_step = first_step
        self.restarted = np.zeros(num_rows, bool)
        self._starts = np.full(num_rows, first_step, np.int64)  # step of the episode's first observation
        self._spec = spec
        step_bytes = sum(leaf.nbytes for leaf in leaves(zeros_of(spec.action, (num_rows,))))
        self._max_steps = min(max_steps, max_bytes // max(1, step_bytes))
        self._blocks: deque[tuple[int, Tree]] = deque()  # (first step, actions [N, B, ...] a leaf)
        self.last_observation: Tree | None = None
        self.agent_state: Tree | None = None  # [B, ...] a leaf, after the last step; None before any
        self._agent_state_spec = agent_state
        self.row_stages = np.full(num_rows, spec.stage or 0, np.int64) if has_stages(spec) else None
        # Of episodes that start after the last step.
        self._next_levels = np.zeros(num_rows if spec.levels else 0, np.int64)
        self.stages = None if spec.stage is None or spec.levels else StageQueue((spec.stage,))

    def observe(self, slot: SlotViews) -> None:
        """Records a full slot; copies its actions."""
        length = len(slot.valid)
        self._blocks.append((self.end_step, map_leaves(np.copy, slot.action)))
        starts = starts_of_envs(slot.is_first, self._spec.rows_per_env)
        # A row that could not be replayed starts an episode with the first observation after a resume.
        self._starts[starts[0]] = self.end_step
        resets = starts[1:]  # [T, B]; not ~valid: steps of an absent agent are invalid too
        any_reset = resets.any(0)
        last = length - 1 - np.argmax(resets[::-1], axis=0)
        self._starts = np.where(any_reset, self.end_step + last + 1, self._starts)
        self.episodes += resets.sum(0)
        if self.stages is not None and self.row_stages is not None:
            stage = self.stages.take()
            self.row_stages[any_reset] = stage
        if self._spec.levels and self.row_stages is not None:
            levels = slot.extras[NEXT_LEVEL]
            self.row_stages[any_reset] = levels[last, np.arange(len(last))][any_reset]
            self._next_levels = levels[-1].astype(np.int64)
        self.end_step += length
        self.last_observation = map_leaves(lambda array: array[-1].copy(), slot.observation)
        self.agent_state = map_leaves(lambda array: array[1].copy(), slot.agent_state)
        stored = self._starts[self._starts >= self.end_step - self._max_steps]
        oldest = int(stored.min(initial=self.end_step))
        while self._blocks and self._blocks[0][0] + _length(self._blocks[0][1]) <= oldest:
            self._blocks.popleft()

    def fits(self, arrays: dict[str, np.ndarray]) -> bool:
        """Returns whether `arrays` have the names, shapes and dtypes that `restore` needs."""
        rows = len(self.episodes)
        if "lengths" not in arrays:
            return False
        expected = {"episodes": np.zeros(rows, np.int64), "lengths": np.zeros(rows, np.int64)}
        expected |= {} if self.row_stages is None else {"row_stages": np.zeros(rows, np.int64)}
        expected |= {"next_levels": self._next_levels} if self._spec.levels else {}
        expected |= _named("observation", zeros_of(self._spec.observation, (rows,)))
        expected |= _named("agent_state", zeros_of(self._agent_state_spec, (rows,)))
        replayed = int(np.maximum(arrays["lengths"], 0).sum())
        expected |= _named("actions", zeros_of(self._spec.action, (replayed,))) if replayed else {}
        return all(
            name in arrays and (arrays[name].shape, arrays[name].dtype) == (value.shape, value.dtype)
            for name, value in expected.items()
        )

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Returns the log as arrays.

        `episodes` [B], `lengths` [B] (-1: too long for a replay); `actions` [sum of lengths, ...], `observation` and
        `agent_state` [B, ...], leaf by leaf; `row_stages` and `next_levels` [B].
        """
        first_stored = self._blocks[0][0] if self._blocks else self.end_step
        lengths = np.where(self._starts >= first_stored, self.end_step - self._starts, -1)
        arrays = {"episodes": self.episodes.copy(), "lengths": lengths}
        arrays |= {} if self.row_stages is None else {"row_stages": self.row_stages.copy()}
        arrays |= {"next_levels": self._next_levels} if self._spec.levels else {}
        if self._blocks and (lengths > 0).any():
            actions = concatenated([block for _, block in self._blocks])
            starts = {row: start - first_stored for row, start in enumerate(self._starts) if lengths[row] > 0}
            replayed = concatenated([take(actions, (slice(start, None), row)) for row, start in starts.items()])
            arrays |= _named("actions", replayed)
        if self.last_observation is not None:
            arrays |= _named("observation", self.last_observation) | _named("agent_state", self.agent_state)
        return arrays

    def restore(self, arrays: dict[str, np.ndarray]) -> EpisodeReset:
        """Continues from `to_arrays`; returns the episodes and actions that the environments must replay.

        `stages` is restored before.
        """
        lengths = arrays["lengths"]
        self.restarted = lengths < 0
        self.episodes = arrays["episodes"] + self.restarted
        lengths = np.maximum(lengths, 0)
        self._starts = self.end_step - lengths
        self.last_observation = _find_tree("observation", self._spec.observation, arrays)
        self.agent_state = _find_tree("agent_state", self._agent_state_spec, arrays)
        actions: list[Tree | None] = [None] * len(lengths)
        longest = int(lengths.max(initial=0))
        if longest:
            flat = _find_tree("actions", self._spec.action, arrays)
            block = zeros_of(self._spec.action, (longest, len(lengths)))
            ends = np.cumsum(lengths)
            for row, (end, length) in enumerate(zip(ends, lengths, strict=True)):
                if length:
                    actions[row] = take(flat, slice(end - length, end))
                    write(take(block, (slice(longest - length, None), row)), actions[row])
            self._blocks.append((self.end_step - longest, block))
        reset = EpisodeReset(tuple(int(episode) for episode in self.episodes), tuple(actions))
        if self.row_stages is None:
            return reset
        starts = self.stages.stages[0] if self.stages is not None else arrays["next_levels"]
        self.row_stages = np.where(self.restarted, starts, arrays["row_stages"])
        return dataclasses.replace(reset, stages=tuple(self.row_stages.tolist()))


def _length(block: Tree) -> int:
    return len(leaves(block)[0])


def _named(name: str, tree: Tree) -> dict[str, np.ndarray]:
    return {field_name(name, path): leaf for path, leaf in items(tree)}


def _find_tree(name: str, spec: SpecTree, arrays: dict[str, np.ndarray]) -> Tree | None:
    """Returns the tree that `_named` flattened; None if it is missing."""
    names = [field_name(name, path) for path, _ in items(spec)]
    return unflatten(spec, [arrays[leaf] for leaf in names]) if names and names[0] in arrays else None
