"""Selection of windows of a buffer on the host: `jaxsrl.replay.device.sampler` in numpy, bit-for-bit identical.

A draw needs no compiled program, whose call alone would take longer than the rest.
"""

import numpy as np

from jaxsrl.replay.device.exact_power import power_on_host
from jaxsrl.replay.device.philox import HostRandom
from jaxsrl.replay.device.ring_index import RingPosition
from jaxsrl.replay.device.sampler import SampledWindows, Selection, episode_starts
from jaxsrl.replay.device.sum_tree import FAN_OUT
from jaxsrl.replay.host.sum_tree import HostTree
from jaxsrl.replay.sizes import RingSizes

_INT32 = 2**32


class HostSampler:
    """State and functions of `device.sampler.Selection` in numpy. Thread-safety: one thread at a time.

    Attributes:
        next_step: see `ring_index.RingPosition`.
        num_steps: see `ring_index.RingPosition`.
        num_stale: see `device.sampler.Selection`.
    """

    def __init__(self, sizes: RingSizes) -> None:
        self._sizes = sizes
        self.next_step = self.num_steps = self.num_stale = 0
        self._num_insertions = self._num_starts = 0
        self._highest = np.float32(1.0)
        self._starts = np.zeros((sizes.ring_steps, sizes.num_groups), bool) if sizes.window_start == "episode" else None
        self._tree = HostTree(sizes.num_leaves) if sizes.keeps_tree else None
        self._random = HostRandom()
        self._probability = np.zeros(0 if sizes.keeps_tree else sizes.batch_size, np.float32)
        self._oldest = self._limit = np.array(0)
        self._plain = sizes.stride == sizes.agents_per_window == 1
        self._num_places = np.array(sizes.ring_steps * sizes.num_rows)
        self._refresh()

    @property
    def keeps_starts(self) -> bool:
        """Returns whether `insert` uses the starts of episodes."""
        return self._starts is not None

    @property
    def num_bytes(self) -> int:
        """Size of the selection."""
        return sum(array.nbytes for array in (self._starts, self._tree and self._tree.nodes) if array is not None)

    @property
    def num_windows(self) -> int:
        """Number of windows that can be drawn."""
        if self._stale:
            self._refresh()
        return self._num_windows

    def insert(self, is_first: np.ndarray, valid: np.ndarray, priority: np.ndarray | None = None) -> None:
        """Updates the selection after a trajectory. Arguments of `device.sampler.insert_slot`, in numpy."""
        sizes, start = self._sizes, self.next_step
        self.next_step = (start + sizes.rollout_length) % sizes.ring_steps
        self.num_steps = min(self.num_steps + sizes.rollout_length, sizes.ring_steps)
        self._num_insertions = (self._num_insertions + 1) % _INT32
        self._stale = True
        if self._tree is None:
            return
        emptied = self._overwritten(start)
        if self._starts is not None:
            # Windows with a weight could be drawn until now.
            self._num_starts -= int(np.count_nonzero(self._tree.weights_at(emptied)))
            self._starts[start : start + sizes.rollout_length] = episode_starts(sizes, is_first, valid)
        self._tree.write(emptied, np.float32(0.0))
        filled = self._add_completed(self._tree, priority)
        self._tree.update_sums(np.unique(np.concatenate([emptied, filled]) // FAN_OUT))

    def draw(self, words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns N windows, those of `device.sampler.draw`. The key, [W] uint32, is consumed.

        Returns:
            [N] int64 starts: `step * B + row` of the first row, with steps counted from the one that is overwritten next.
            [N] float32 probabilities of drawing this window in one draw.
        """
        if self._stale:
            self._refresh()
        count = self._sizes.batch_size
        if self._tree is None:
            starts = self._random.bounded(words, count, self._limit)
            if not self._plain:
                starts = self._place_of(starts)
            starts += self._oldest
            return starts, self._probability.copy()
        levels = self._tree.num_levels
        uniform = self._random.uniforms(words, levels * count).reshape(levels, count)
        starts, probability = self._tree.draw(uniform)
        if not self._plain:
            starts = self._place_of(starts)
        return (starts - self._oldest) % self._num_places, probability

    def make_windows(self, since: np.ndarray, probability: np.ndarray) -> SampledWindows:
        """Returns the result of `draw` in the form of `device.sampler.draw`; integers are int64."""
        rows = self._sizes.num_rows
        step = since // rows
        age, group = self._sizes.ring_steps - step, (since - step * rows) // self._sizes.agents_per_window
        begin = (step + self.next_step) % self._sizes.ring_steps
        insertions = np.uint32(self._num_insertions).view(np.int32)
        return SampledWindows(begin, group, age, insertions, probability, np.int32(self.num_windows))  # pyright: ignore[reportArgumentType]

    def update_priorities(self, drawn: SampledWindows, priority: np.ndarray) -> None:
        """Sets the priorities [N] of a gradient step; see `device.sampler.update_priorities`."""
        sizes, tree = self._sizes, self._tree
        if not sizes.priority_exponent or tree is None:
            return
        passed = (self._num_insertions - int(drawn.num_insertions)) % _INT32
        age = np.asarray(drawn.age) + min(passed, sizes.ring_steps // sizes.rollout_length) * sizes.rollout_length
        fresh = age <= sizes.max_age
        leaf = np.asarray(drawn.begin) // sizes.stride * sizes.num_groups + np.asarray(drawn.group)
        priority = self._usable(priority)
        if not fresh.all():
            self.num_stale += len(fresh) - int(np.count_nonzero(fresh))
            leaf, priority = leaf[fresh], priority[fresh]
            if not len(leaf):
                return
        tree.write(leaf, self._weight(priority))
        tree.update_sums(leaf // FAN_OUT)
        self._highest = max(self._highest, priority.max())

    def arrays(self) -> Selection:
        """Returns a `device.sampler.Selection` of numpy arrays; starts and tree are views of its memory."""
        insertions = np.uint32(self._num_insertions).view(np.int32)
        position = (_int32(self.next_step), _int32(self.num_steps), np.asarray(insertions))
        return Selection(
            position=RingPosition(*position),  # pyright: ignore[reportArgumentType]
            starts=() if self._starts is None else self._starts,
            tree=() if self._tree is None else self._tree.nodes,
            num_starts=_int32(self._num_starts),  # pyright: ignore[reportArgumentType]
            highest=np.asarray(self._highest),  # pyright: ignore[reportArgumentType]
            num_stale=_int32(self.num_stale),  # pyright: ignore[reportArgumentType]
        )

    def restore(self, selection: Selection) -> None:
        """Restores a copy of a selection, of the host or a device."""
        position = selection.position
        self.next_step, self.num_steps = int(position.next_step), int(position.num_steps)
        self._num_insertions = int(position.num_insertions) % _INT32
        self._num_starts, self.num_stale = int(selection.num_starts), int(selection.num_stale)
        self._highest = np.float32(selection.highest)
        if self._starts is not None:
            np.copyto(self._starts, selection.starts)
        if self._tree is not None:
            np.copyto(self._tree.nodes, selection.tree)
        self._stale = True

    def _refresh(self) -> None:
        """Computes the number of windows and the start of the oldest from the position."""
        sizes = self._sizes
        youngest = sizes.window_steps + (self.next_step - sizes.window_steps) % sizes.stride
        begins = max((min(self.num_steps, sizes.max_age) - youngest) // sizes.stride + 1, 0)
        windows = self._num_starts if self._starts is not None else begins * sizes.num_groups
        self._stale, self._num_windows = False, windows
        # 0-d arrays: numpy would convert a Python number on each use.
        if self._tree is not None:
            self._oldest = np.array(self.next_step * sizes.num_rows)
        elif windows:
            oldest = youngest + (begins - 1) * sizes.stride
            self._oldest, self._limit = (
                np.array((sizes.ring_steps - oldest) * sizes.num_rows),
                np.array(windows, np.uint64),
            )
            self._probability.fill(np.float32(1.0) / np.float32(windows))

    def _place_of(self, leaf: np.ndarray) -> np.ndarray:
        """Returns `step * B + row` of the starts of windows, numbered in the order of the ring."""
        sizes = self._sizes
        begin = leaf // sizes.num_groups
        return begin * (sizes.stride * sizes.num_rows) + (leaf - begin * sizes.num_groups) * sizes.agents_per_window

    def _leaves(self, begins: np.ndarray) -> np.ndarray:
        """Returns the [n * G] leaves of starts [n], numbered from any turn of the ring."""
        sizes = self._sizes
        return ((begins % sizes.num_begins)[:, None] * sizes.num_groups + np.arange(sizes.num_groups)).ravel()

    def _overwritten(self, start: int) -> np.ndarray:
        """Returns leaves of windows whose first step or history the next insertion at `start` overwrites."""
        sizes = self._sizes
        first = -(-start // sizes.stride)
        last = -(-(start + sizes.rollout_length + sizes.history) // sizes.stride)
        return self._leaves(np.arange(first, last))

    def _add_completed(self, tree: HostTree, priority: np.ndarray | None) -> np.ndarray:
        """Adds the windows that the newest T steps complete; returns their leaves. Sums are not updated."""
        sizes = self._sizes
        oldest = sizes.window_steps + sizes.rollout_length - 1
        first = self.next_step - min(oldest, self.num_steps)  # of the stored steps
        number = -(-first // sizes.stride)
        last = -(-(self.next_step - oldest + sizes.rollout_length) // sizes.stride)
        begins = np.arange(number, last)
        leaf = self._leaves(begins)
        keep = None
        if self._starts is not None:
            keep = self._starts[begins * sizes.stride % sizes.ring_steps].ravel()
            leaf = leaf[keep]
            self._num_starts += len(leaf)
        tree.write(leaf, self._first_weights(begins * sizes.stride - (self.next_step - oldest), keep, priority))
        return leaf

    def _first_weights(
        self, offset: np.ndarray, keep: np.ndarray | None, priority: np.ndarray | None
    ) -> np.ndarray | np.float32:
        """Returns weights of new windows, whose priorities are at times [n] of [T, B]."""
        sizes = self._sizes
        if not sizes.priority_exponent:
            return np.float32(1.0)
        if priority is None:
            return self._weight(np.full(1, self._highest))[0]
        teams = np.asarray(priority).reshape(sizes.rollout_length, sizes.num_groups, sizes.agents_per_window)
        initial = self._usable(teams.max(axis=2)[offset].ravel())
        initial = initial if keep is None else initial[keep]
        if len(initial):
            self._highest = max(self._highest, initial.max())
        return self._weight(initial)

    def _usable(self, priority: np.ndarray) -> np.ndarray:
        """Returns priorities [n] as float32, not negative. The highest so far replaces non-finite ones."""
        priority = np.asarray(priority, np.float32)
        finite = np.isfinite(priority)
        if not finite.all():
            priority = np.where(finite, priority, self._highest)
        return np.maximum(priority, np.float32(0.0))

    def _weight(self, priority: np.ndarray) -> np.ndarray:
        """Returns p^alpha (Schaul et al. 2016, eq. 1)."""
        return power_on_host(priority + np.float32(self._sizes.priority_offset), self._sizes.priority_exponent)


def _int32(number: int) -> np.ndarray:
    return np.asarray(number, np.int32)
