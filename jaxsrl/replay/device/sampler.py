"""Selection of windows and their probabilities: pure functions of step indices.

`jaxsrl.replay.host.sampler` is the same in numpy. It uses integers, and float32 operations with an exact result, in the same
order. So both draw the same windows from the same key. Windows are drawn independently, with replacement. A window can be drawn
from when its last step is inserted until the first step it needs is overwritten. It never spans the seam between the newest and
the oldest step.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agents.api import Array
from jaxsrl.replay.device.exact_power import power
from jaxsrl.replay.device.philox import bounded, random_bits, uniforms
from jaxsrl.replay.device.ring_index import RingPosition, advance, init_position, step_age, step_at_age
from jaxsrl.replay.device.sum_tree import (
    FAN_OUT,
    draw_leaves,
    init_tree,
    nodes_of_run,
    num_levels,
    update_sums,
    write_leaves,
)
from jaxsrl.replay.sizes import RingSizes


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Selection:
    """State of the selection.

    Attributes:
        position: Position of the ring.
        starts: [C, G] bool, whether an episode starts; () where windows start anywhere.
        tree: sum-tree of window weights, 0 for windows that cannot be drawn, indexed by `begin // stride * G + group`; () if all
            weights are equal.
        num_starts: int32 scalar, windows that can be drawn where they start with episodes; 0 elsewhere.
        highest: float32 scalar, the highest priority so far.
        num_stale: int32 scalar, priorities that arrived after their windows were overwritten.
    """

    position: RingPosition
    starts: Any
    tree: Any
    num_starts: Array
    highest: Array
    num_stale: Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SampledWindows:
    """N windows.

    Attributes:
        begin: [N] int32 in [0, C), first step in the ring.
        group: [N] int32 in [0, G).
        age: [N] int32, age of the first step at the draw (`ring_index.step_age`).
        num_insertions: int32 scalar, trajectories inserted before the draw.
        probability: [N] float32, of drawing this window in one draw.
        num_windows: int32 scalar, windows that could have been drawn.
    """

    begin: Array
    group: Array
    age: Array
    num_insertions: Array
    probability: Array
    num_windows: Array


def init_selection(sizes: RingSizes) -> Selection:
    """Returns the selection of an empty ring."""
    return Selection(
        position=init_position(),
        starts=jnp.zeros((sizes.ring_steps, sizes.num_groups), bool) if sizes.window_start == "episode" else (),
        tree=init_tree(sizes.num_leaves) if sizes.keeps_tree else (),
        num_starts=jnp.zeros((), jnp.int32),
        highest=jnp.ones((), jnp.float32),
        num_stale=jnp.zeros((), jnp.int32),
    )


def insert_slot(
    sizes: RingSizes, selection: Selection, is_first: Array, valid: Array, priority: Array | None = None
) -> Selection:
    """Returns the selection after a trajectory: overwritten windows are removed, and completed ones are added.

    Args:
        sizes: Sizes of the ring.
        selection: Selection before.
        is_first: [T, B] bool, of its steps.
        valid: [T, B] bool.
        priority: [T, B] float32, of the windows that start from T + L - 1 to L steps before the newest step
            (`agents.api.InitialPriorityFn`); None for the highest so far.
    """
    before, position = selection.position, advance(sizes, selection.position)
    selection = dataclasses.replace(selection, position=position)
    if sizes.window_start == "episode":
        new = episode_starts(sizes, is_first, valid)
        starts = jax.lax.dynamic_update_slice_in_dim(selection.starts, new, before.next_step, 0)
        age = step_age(sizes, position, jnp.arange(sizes.ring_steps, dtype=jnp.int32))
        complete = (age >= sizes.window_steps) & (age <= jnp.minimum(position.num_steps, sizes.max_age))
        count = jnp.sum(starts & complete[:, None], dtype=jnp.int32)
        selection = dataclasses.replace(selection, starts=starts, num_starts=count)
    if not sizes.keeps_tree:
        return selection
    selection, emptied = _remove_overwritten(sizes, selection, before)
    selection, filled = _add_completed(sizes, selection, priority)
    tree = update_sums(sizes.num_leaves, selection.tree, jnp.concatenate([emptied, filled]))
    return dataclasses.replace(selection, tree=tree)


def episode_starts(sizes: RingSizes, is_first: Any, valid: Any) -> Any:
    """Returns [T, G] bool, whether an episode starts; of jax or numpy. For a team, every acting agent must be at its first step."""
    teams = (is_first.shape[0], sizes.num_groups, sizes.agents_per_window)
    first, acts = is_first.reshape(teams), valid.reshape(teams)
    return first.any(axis=2) & (first | ~acts).all(axis=2)


def num_windows(sizes: RingSizes, selection: Selection) -> Array:
    """Returns the number of windows that can be drawn, int32 scalar."""
    if sizes.window_start == "episode":
        return selection.num_starts
    return _begins(sizes, selection.position)[1] * sizes.num_groups


def draw(sizes: RingSizes, selection: Selection, words: Array) -> SampledWindows:
    """Returns N windows. At least one must be available. The key, [W] uint32 (see `philox`), is consumed."""
    position, groups = selection.position, sizes.num_groups
    count = num_windows(sizes, selection)
    shape = (sizes.batch_size,)
    if sizes.keeps_tree:
        shape = (num_levels(sizes.num_leaves), *shape)
        size = shape[0] * shape[1]
        uniform = uniforms(random_bits(words, -(-size // 2)))[:size].reshape(shape)
        leaf, probability = draw_leaves(sizes.num_leaves, selection.tree, uniform)
        begin, group = leaf // groups * sizes.stride, leaf % groups
        age = step_age(sizes, position, begin)
    else:
        number = bounded(random_bits(words, sizes.batch_size), count)
        youngest, begins = _begins(sizes, position)
        age, group = youngest + (begins - 1 - number // groups) * sizes.stride, number % groups
        begin = step_at_age(sizes, position, age)
        probability = jnp.broadcast_to(1.0 / count.astype(jnp.float32), shape)
    return SampledWindows(begin, group, age, position.num_insertions, probability, count)


def update_priorities(
    sizes: RingSizes, selection: Selection, drawn: SampledWindows, priority: Array, counts: Array | bool = True
) -> Selection:
    """Returns the selection with new priorities. Those of overwritten windows are skipped and counted.

    Args:
        sizes: Sizes of the ring.
        selection: Selection to change.
        drawn: the windows that the gradient step was trained on.
        priority: [N], not negative, before the exponent. The later value of a window that was drawn twice counts. The highest
            so far replaces a non-finite value.
        counts: bool scalar, whether to apply them at all.
    """
    if not sizes.priority_exponent:
        return selection
    passed = selection.position.num_insertions - drawn.num_insertions
    age = drawn.age + jnp.minimum(passed, sizes.ring_steps // sizes.rollout_length) * sizes.rollout_length
    fresh = (age <= sizes.max_age) & counts
    stale = (age > sizes.max_age) & counts
    priority = jnp.where(jnp.isfinite(priority), jnp.maximum(priority, 0.0), selection.highest).astype(jnp.float32)
    leaf = drawn.begin // sizes.stride * sizes.num_groups + drawn.group
    order = jnp.argsort(leaf, stable=True)
    ordered = leaf[order]
    last = jnp.concatenate([ordered[1:] != ordered[:-1], jnp.ones((1,), bool)])
    weight = _weight(sizes, priority[order])
    tree = write_leaves(sizes.num_leaves, selection.tree, ordered, weight, last & fresh[order])
    return dataclasses.replace(
        selection,
        tree=update_sums(sizes.num_leaves, tree, ordered // FAN_OUT),
        highest=jnp.maximum(selection.highest, jnp.max(jnp.where(fresh, priority, 0.0))),
        num_stale=selection.num_stale + jnp.sum(stale, dtype=jnp.int32),
    )


def _weight(sizes: RingSizes, priority: Array) -> Array:
    """Returns p^alpha (Schaul et al. 2016, eq. 1)."""
    return power(priority + np.float32(sizes.priority_offset), sizes.priority_exponent)


def _begins(sizes: RingSizes, position: RingPosition) -> tuple[Array, Array]:
    """Returns (age of the youngest start of a complete window, number of starts)."""
    stride, steps = sizes.stride, sizes.window_steps
    youngest = steps + (position.next_step - steps) % stride
    oldest = jnp.minimum(position.num_steps, sizes.max_age)
    return youngest, jnp.maximum((oldest - youngest) // stride + 1, 0)


def _candidates(sizes: RingSizes, step: Array, count: int) -> tuple[Array, Array, Array]:
    """Returns window starts among the `count` steps from `step` of the ring on.

    Returns:
        The number of the first; [n] int32, offsets of all n among the `count` steps; [n] bool, whether they are within.
    """
    stride = sizes.stride
    skipped = (-step) % stride
    offset = skipped + stride * jnp.arange(-(-count // stride), dtype=jnp.int32)
    first = (step + skipped) // stride % sizes.num_begins
    return first, offset, offset < count


def _run_of_leaves(sizes: RingSizes, first: Array, begins: int) -> Array:
    """Returns the [n * G] leaves of n starts from number `first` on."""
    leaves = jnp.arange(begins * sizes.num_groups, dtype=jnp.int32)
    return (first * sizes.num_groups + leaves) % sizes.num_leaves


def _remove_overwritten(sizes: RingSizes, selection: Selection, before: RingPosition) -> tuple[Selection, Array]:
    """Removes windows whose first step or history is overwritten; returns the nodes to sum again, too."""
    first, offset, within = _candidates(sizes, before.next_step, sizes.rollout_length + sizes.history)
    leaf, keep = _run_of_leaves(sizes, first, offset.shape[0]), jnp.repeat(within, sizes.num_groups)
    tree = write_leaves(sizes.num_leaves, selection.tree, leaf, jnp.zeros(leaf.shape, jnp.float32), keep)
    nodes = nodes_of_run(sizes.num_leaves, first * sizes.num_groups, leaf.shape[0])
    return dataclasses.replace(selection, tree=tree), nodes


def _add_completed(sizes: RingSizes, selection: Selection, priority: Array | None) -> tuple[Selection, Array]:
    """Adds windows that the newest T steps complete; returns the nodes to sum again, too."""
    position, groups = selection.position, sizes.num_groups
    oldest = sizes.window_steps + sizes.rollout_length - 1
    step = step_at_age(sizes, position, jnp.asarray(oldest, jnp.int32))
    first, offset, within = _candidates(sizes, step, sizes.rollout_length)
    exists = within & (oldest - offset <= position.num_steps)
    keep = jnp.broadcast_to(exists[:, None], (exists.shape[0], groups))
    if sizes.window_start == "episode":
        keep &= selection.starts[(step + offset) % sizes.ring_steps]
    highest = selection.highest
    if not sizes.priority_exponent:
        weight = jnp.ones(keep.shape, jnp.float32)
    elif priority is None:
        weight = jnp.broadcast_to(_weight(sizes, highest), keep.shape)
    else:
        team_priority = priority.reshape(sizes.rollout_length, groups, sizes.agents_per_window).max(axis=2)
        initial = team_priority[jnp.minimum(offset, sizes.rollout_length - 1)].astype(jnp.float32)
        initial = jnp.where(jnp.isfinite(initial), jnp.maximum(initial, 0.0), highest)
        weight = _weight(sizes, initial)
        highest = jnp.maximum(highest, jnp.max(jnp.where(keep, initial, 0.0)))
    leaf = _run_of_leaves(sizes, first, offset.shape[0])
    tree = write_leaves(sizes.num_leaves, selection.tree, leaf, weight.reshape(-1), keep.reshape(-1))
    nodes = nodes_of_run(sizes.num_leaves, first * groups, leaf.shape[0])
    return dataclasses.replace(selection, tree=tree, highest=highest), nodes
