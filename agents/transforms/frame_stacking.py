"""Frame stacking: an agent for single frames, made from an agent for stacks.

Slots store every frame once, with a short history before the first (`envpool_bridge.shm.slots`). Agents take stacks, which equal
those of gymnasium.wrappers.FrameStackObservation (padding "reset") byte for byte.
"""

import dataclasses
from functools import partial
from typing import Any, overload

import jax
import jax.numpy as jnp

from agents.api import (
    ActFn,
    Agent,
    AgentState,
    AnyAgent,
    Array,
    LearnerState,
    Metrics,
    Mode,
    Params,
    ReplayAgent,
    Sample,
    Trajectory,
)
from agents.transforms.changed_trajectories import with_changed_trajectories
from envpool_bridge.spec.specs import ArraySpec, EnvSpec, LeafSpec, SpecTree, num_frames
from envpool_bridge.spec.tree import Tree, map_leaves


def stack_frames(frames: Array, is_first: Array, count: int) -> Array:
    """Returns the newest `count` frames at each of N steps, oldest first.

    If an episode started less than `count` steps ago, its first frame replaces earlier ones. The function slices and selects,
    so a sharded B needs no gather.

    Args:
        frames: [count-1 + N, B, ...], the first `count - 1` as stacked at the step before the first.
        is_first: [W-1 + N, B] bool, W >= count; False before the first of the N steps.
        count: Frames of a stack.

    Returns:
        [N, B, count, ...].
    """
    steps = frames.shape[0] - count + 1
    is_first = is_first[is_first.shape[0] - frames.shape[0] :]
    layers = [frames[count - 1 :]]
    is_after_start = jnp.zeros(is_first[:steps].shape, bool)  # whether the episode started after the frame of this age
    for age in range(1, count):
        before = count - 1 - age
        is_after_start |= is_first[before + 1 : before + 1 + steps]
        chosen = is_after_start.reshape(is_after_start.shape + (1,) * (frames.ndim - 2))
        layers.append(jnp.where(chosen, layers[-1], frames[before : before + steps]))
    return jnp.stack(layers[::-1], axis=2)


@overload
def with_stacked_frames(agent: Agent, spec: EnvSpec) -> Agent: ...
@overload
def with_stacked_frames(agent: ReplayAgent, spec: EnvSpec) -> ReplayAgent: ...
def with_stacked_frames(agent: AnyAgent, spec: EnvSpec) -> AnyAgent:
    """Returns the agent for windows of single frames; the agent itself where nothing is stacked.

    Its `act` takes observations [F, R, ...] for a leaf of F > 1 frames and is_first [W, R]: see
    `envpool_bridge.shm.slots.ActRows`. Its `update` takes a Trajectory with `frames` and `is_first_frames` of a slot, or a
    Sample of such; its `predict_observations` takes such a Trajectory. The first of `Replay.transforms` takes such a Sample; the
    other transforms and `update` then take stacks.
    """
    if num_frames(spec) == 1:
        return agent
    if isinstance(agent, ReplayAgent):
        return _with_stacked_samples(agent, spec)
    stacked = with_changed_trajectories(agent, partial(stacked_trajectory, spec.observation))
    return stacked._replace(act=_act_on_frames(agent, spec))


def _with_stacked_samples(agent: ReplayAgent, spec: EnvSpec) -> ReplayAgent:
    """Stacks the frames of samples for the first that takes them: a transform of `Replay.transforms`, or the update."""

    def stacked(sample: Sample) -> Sample:
        trajectory = stacked_trajectory(spec.observation, sample.trajectory)
        return dataclasses.replace(sample, trajectory=trajectory)

    def transform(params: Params, extra: Any, sample: Sample, key: Array) -> Sample:
        return agent.data.transforms[0](params, extra, stacked(sample), key)

    def update(state: LearnerState, sample: Sample, key: Array) -> tuple[LearnerState, Metrics, Array]:
        return agent.update(state, stacked(sample), key)

    def predict(
        params: Params, extra: Any, window: Trajectory, seen: Array, key: Array
    ) -> dict[str, tuple[Array, Array]]:
        assert agent.predict_observations is not None
        return agent.predict_observations(params, extra, stacked_trajectory(spec.observation, window), seen, key)

    agent_on_frames = agent._replace(
        act=_act_on_frames(agent, spec), predict_observations=predict if agent.predict_observations else None
    )
    if not agent.data.transforms:
        return agent_on_frames._replace(update=update)
    transforms = (transform, *agent.data.transforms[1:])
    return agent_on_frames._replace(data=dataclasses.replace(agent.data, transforms=transforms))


def _act_on_frames(agent: AnyAgent, spec: EnvSpec) -> ActFn:
    def act(
        params: Params, observation: Tree, agent_state: AgentState, is_first: Array, keys: Array, mode: Mode
    ) -> tuple[Any, dict[str, Array], AgentState]:
        stacks = map_leaves(partial(_newest_stack, is_first), spec.observation, observation)
        return agent.act(params, stacks, agent_state, is_first[-1], keys, mode)

    return act


def _newest_stack(is_first: Array, leaf: LeafSpec, frames: Array) -> Array:
    if not isinstance(leaf, ArraySpec) or leaf.frames == 1:
        return frames
    return stack_frames(frames, is_first, leaf.frames)[0]


def stacked_trajectory(observation: SpecTree, batch: Trajectory) -> Trajectory:
    """Returns a trajectory of stacks, from one of single frames with the frames before its first step."""
    steps = jax.tree.leaves(batch.action)[0].shape[0] + 1
    stacked = map_leaves(partial(_stacks, batch.is_first), observation, batch.observation)
    return dataclasses.replace(batch, observation=stacked, is_first=batch.is_first[-steps:])


def _stacks(is_first: Array, leaf: LeafSpec, frames: Array) -> Array:
    if not isinstance(leaf, ArraySpec) or leaf.frames == 1:
        return frames
    return stack_frames(frames, is_first, leaf.frames)
