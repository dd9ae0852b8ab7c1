"""Replay within the compiled update: insertion of a trajectory, then the gradient steps that are due."""

import dataclasses
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from agents.api import Agent, Array, LearnerState, Metrics, OnPolicy, ReplayAgent, Sample, Trajectory
from jaxsrl.replay.device.ring_index import advance
from jaxsrl.replay.device.sampler import (
    Selection,
    draw,
    init_selection,
    insert_slot,
    num_windows,
)
from jaxsrl.replay.device.storage import init_storage, insert
from jaxsrl.replay.device.windows import gather_windows, newest_steps
from jaxsrl.replay.priority_delay import delay_priorities, init_pending
from jaxsrl.replay.schedule import Pace, init_pace_state, make_pace, steps_due
from jaxsrl.replay.sizes import RingSizes, make_sizes
from jaxsrl.replay.state import Buffer, ReplayExtra, inner_state

GRADIENT_STEPS = "replay/gradient_steps"
"""Metric of every update with replay: gradient steps that it took."""
REPLAY_METRICS = (GRADIENT_STEPS, "replay/size", "replay/stale_priorities_total")
"""Metrics of every update with replay that are not the agent's, which are 0 in an update without a gradient step."""


class _Bound(NamedTuple):
    agent: ReplayAgent
    shapes: Trajectory
    sizes: RingSizes
    pace: Pace


class StepKeys(NamedTuple):
    """Keys of one gradient step, each for one use: draw (its words, uint32), agent update, and each of `Replay.transforms`."""

    draw: Array
    update: Array
    transforms: Array


def with_device_replay(agent: ReplayAgent, shapes: Trajectory) -> Agent:
    """Returns an agent whose update inserts the trajectory and runs the gradient steps that are due. Its state has the buffer.

    Its metrics are float32 means over the gradient steps of this trajectory, 0 if there were none. `replay/gradient_steps` is the
    number of these steps, `replay/size` the number of stored env steps, `replay/stale_priorities_total` that of late priorities.

    Args:
        agent: agent to train.
        shapes: Shapes of a slot, with the frames before its first step; `jax.ShapeDtypeStruct` each (see `sizes.make_sizes`).

    Raises:
        UserError: If the sizes are invalid.
    """
    sizes = make_sizes(agent.data, shapes)
    pace = make_pace(agent.data.config, sizes.rollout_length * sizes.num_rows)
    bound = _Bound(agent, shapes, sizes, pace)
    return Agent(
        name=agent.name,
        init=partial(_init, bound),
        initial_agent_state=agent.initial_agent_state,
        act=agent.act,
        update=partial(_update, bound),
        extras=agent.extras,
        data=OnPolicy(),
    )


def step_keys(agent: ReplayAgent, key: Array, step: Array) -> StepKeys:
    """Returns the keys of gradient step `step` (int32 scalar, from 0) of an update. They are the same on the host."""
    draw_key, update_key, *transform_keys = jax.random.split(
        jax.random.fold_in(key, step), 2 + len(agent.data.transforms)
    )
    words = jax.random.key_data(draw_key)
    return StepKeys(words, update_key, jnp.stack(transform_keys) if transform_keys else jnp.zeros((0,)))


def transform_sample(agent: ReplayAgent, state: LearnerState, sample: Sample, keys: Array) -> Sample:
    """Returns the sample after the agent's `Replay.transforms`."""
    for number, step in enumerate(agent.data.transforms):
        sample = step(state.params, state.extra, sample, keys[number])
    return sample


def _init(bound: _Bound, key: Array) -> LearnerState:
    state = bound.agent.init(key)
    buffer = init_buffer(bound.sizes, bound.pace, bound.shapes)
    return dataclasses.replace(state, extra=ReplayExtra(state.extra, buffer))


def init_buffer(sizes: RingSizes, pace: Pace, shapes: Trajectory) -> Buffer:
    """Returns an empty buffer for slots of these shapes."""
    return Buffer(init_storage(sizes, shapes), init_selection(sizes), init_pace_state(pace), init_pending(sizes))


def _update(bound: _Bound, state: LearnerState, batch: Trajectory, key: Array) -> tuple[LearnerState, Metrics]:
    buffer = _insert(bound, state.extra.buffer, batch)
    inner = inner_state(state)
    inner = dataclasses.replace(inner, num_updates=inner.num_updates + 1)
    due, pace = steps_due(bound.pace, buffer.pace, num_windows(bound.sizes, buffer.selection) > 0)
    learn = partial(_learn, bound, buffer.storage, key)
    first = (inner, buffer.selection, buffer.pending)
    shapes = jax.eval_shape(learn, jnp.zeros((), jnp.int32), *first)[1]
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

    def step(number: Array, carry: tuple) -> tuple:
        carried, sums = carry
        learned, metrics = learn(number, *carried)
        return learned, jax.tree.map(jnp.add, sums, metrics)

    (inner, selection, pending), sums = jax.lax.fori_loop(0, due, step, (first, zeros))
    if bound.agent.data.sync_acting_params is not None:
        inner = bound.agent.data.sync_acting_params(inner)
    metrics = {name: value / jnp.maximum(due, 1) for name, value in sums.items()}
    stored = selection.position.num_steps.astype(jnp.float32) * bound.sizes.num_rows
    values = due.astype(jnp.float32), stored, selection.num_stale.astype(jnp.float32)
    metrics |= dict(zip(REPLAY_METRICS, values, strict=True))
    buffer = Buffer(buffer.storage, selection, pace, pending)
    return dataclasses.replace(inner, extra=ReplayExtra(inner.extra, buffer)), metrics


def _insert(bound: _Bound, buffer: Buffer, batch: Trajectory) -> Buffer:
    sizes, replay = bound.sizes, bound.agent.data
    storage = insert(sizes, buffer.storage, buffer.selection.position, batch)
    priority = None
    if replay.initial_priority is not None and sizes.priority_exponent:
        count = sizes.rollout_length + sizes.window_steps - 1
        after = advance(sizes, buffer.selection.position)
        priority = replay.initial_priority(newest_steps(sizes, storage, after, count))
    first = sizes.history
    is_first = batch.is_first[first : first + sizes.rollout_length]
    selection = insert_slot(sizes, buffer.selection, is_first, batch.valid, priority)
    return dataclasses.replace(buffer, storage=storage, selection=selection)


def _learn(
    bound: _Bound,
    storage: Trajectory,
    key: Array,
    number: Array,
    inner: LearnerState,
    selection: Selection,
    pending: object,
) -> tuple[tuple, Metrics]:
    """Runs one gradient step: draws a sample, applies transforms, updates the agent and its priorities."""
    agent, sizes = bound.agent, bound.sizes
    keys = step_keys(agent, key, number)
    drawn = draw(sizes, selection, keys.draw)
    windows = gather_windows(sizes, storage, selection.position, drawn.begin, drawn.group)
    sample = Sample(windows, drawn.probability, drawn.num_windows)
    sample = transform_sample(agent, inner, sample, keys.transforms)
    inner, metrics, priority = agent.update(inner, sample, keys.update)
    selection, pending = delay_priorities(sizes, selection, pending, drawn, priority)
    return (inner, selection, pending), metrics
