"""Bytes that flow through a plan's channels, that the channels hold, and that cross the network: arithmetic only."""

import dataclasses
import math
from typing import Any

import numpy as np

from agents.api import AnyAgent
from envpool_bridge.shm.layout import SlotLayout
from envpool_bridge.shm.slot_summary import SlotSummaries
from envpool_bridge.spec.specs import num_frames
from envpool_bridge.spec.tree import leaves
from jaxsrl.plan.fragment import Carries, Channel, Transport
from jaxsrl.plan.plan import Plan


@dataclasses.dataclass(frozen=True)
class ChannelBytes:
    """Bytes of one channel.

    Attributes:
        item: one observation or action of a whole lane at one step; one trajectory of a replica; one set of parameters or
            gradients.
        total: Total of all items that the channel holds when it is full, over all replicas.
    """

    item: int
    total: int


@dataclasses.dataclass(frozen=True)
class PlanBytes:
    """Bytes of a plan.

    Attributes:
        channels: Channels in the plan's order.
        slot: one trajectory slot of one replica.
        slots: all slots of all replicas with their counters, which shared memory must hold.
        params: one set of parameters.
        replay: experience that is kept for learning from it again; 0 without.
        samples_per_update: Samples that are drawn of it for an update, on average.
        summary: Summary of one slot that goes to replay on a node, as the learner process receives it; 0 if slots go to the
            learner.
    """

    channels: tuple[ChannelBytes, ...]
    slot: int
    slots: int
    params: int
    replay: int = 0
    samples_per_update: float = 0.0
    summary: int = 0


@dataclasses.dataclass(frozen=True)
class ReplayBytes:
    """Bytes of a replay buffer.

    Attributes:
        held: Bytes of all that it holds when it is full.
        sample: Bytes of one sample.
        priorities: Bytes of the new priorities of one sample.
        samples_per_update: drawn for an update, on average.
    """

    held: int = 0
    sample: int = 0
    priorities: int = 0
    samples_per_update: float = 0.0


def bytes_of_plan(plan: Plan, layout: SlotLayout, params_bytes: int, replay: ReplayBytes | None = None) -> PlanBytes:
    """Returns the bytes that flow and the bytes that are held.

    Args:
        plan: Plan with the `shape` of the layout.
        layout: Layout of one replica's slots.
        params_bytes: Bytes of one set of parameters; gradients are as large.
        replay: Bytes of the plan's replay; None without.
    """
    replay = replay or ReplayBytes()
    channels = tuple(_bytes_of_channel(plan, channel, layout, params_bytes, replay) for channel in plan.channels)
    slots = 0 if plan.is_offline else layout.total_bytes * plan.environments.replicas
    summary = SlotSummaries(layout).num_bytes if plan.replay is not None and plan.replay.nodes else 0
    return PlanBytes(channels, layout.slot_bytes, slots, params_bytes, replay.held, replay.samples_per_update, summary)


@dataclasses.dataclass(frozen=True)
class BytesBetweenNodes:
    """Bytes that cross the network, if the learner is on a node of its own.

    Attributes:
        trajectories: an update: one slot of every host, to the learner's node, or to that of replay.
        parameters: an update: one version to every node that acts, however many hosts or servers it has.
        env_step: Time of all environments' step.
        acting: an update: observations to servers on other nodes, and what these answer; 0 where hosts act themselves.
        sampling: mean bytes an update: samples from replay on a node, priorities in return, and slot summaries for the learner
            process; 0 for replay in that process.
    """

    trajectories: int
    parameters: int
    env_step: float
    acting: int = 0
    sampling: int = 0


def bytes_between_nodes(plan: Plan, sizes: PlanBytes) -> BytesBetweenNodes:
    """Returns the bytes of one update, for a plan with environments on nodes and its `sizes`."""
    trajectories = sizes.slot * plan.environments.replicas
    parameters = sizes.params * len(set(plan.inference.nodes))
    asked = [
        size.item
        for channel, size in zip(plan.channels, sizes.channels, strict=False)
        if channel.transport is Transport.CALLS
    ]
    lanes = plan.shape.num_lanes * plan.environments.replicas
    acting = sum(asked) * lanes * plan.shape.rollout_length
    steps = plan.num_rows * plan.shape.rollout_length
    sampling = _sampling(plan, sizes)
    sent = trajectories + parameters + acting + sampling
    return BytesBetweenNodes(trajectories, parameters, sent / steps, acting, sampling)


def _sampling(plan: Plan, sizes: PlanBytes) -> int:
    if plan.replay is None or not plan.replay.nodes:
        return 0
    drawn = [
        size.item
        for channel, size in zip(plan.channels, sizes.channels, strict=True)
        if channel.carries in (Carries.SAMPLES, Carries.PRIORITIES)
    ]
    return round(sum(drawn) * sizes.samples_per_update) + sizes.summary * plan.environments.replicas


def params_bytes_of(agent: AnyAgent) -> int:
    """Returns bytes of the agent's parameters; nothing is allocated."""
    import jax

    state: Any = jax.eval_shape(agent.init, jax.random.key(0))  # pyright: ignore[reportUnknownMemberType]
    params: list[Any] = jax.tree.leaves(state.params)
    return sum(math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize for leaf in params)


def _bytes_of_channel(
    plan: Plan, channel: Channel, layout: SlotLayout, params_bytes: int, replay: ReplayBytes
) -> ChannelBytes:
    """Returns each replica of the environments has channels of its own; parameters have a copy a reader, gradients one place."""
    replicas = {fragment.name: fragment.replicas for fragment in plan.fragments}
    match channel.carries:
        case Carries.OBSERVATIONS:
            item = _bytes_seen(layout, channel.transport)
        case Carries.ACTIONS:
            item = _bytes_chosen(layout, channel.transport)
        case Carries.TRAJECTORIES:
            item = layout.slot_bytes
        case Carries.PARAMETERS | Carries.GRADIENTS:
            item = params_bytes
        case Carries.SAMPLES:
            return ChannelBytes(replay.sample, replay.sample * channel.capacity)
        case Carries.PRIORITIES:
            return ChannelBytes(replay.priorities, replay.priorities * channel.capacity)
    copies = plan.environments.replicas
    if channel.carries is Carries.PARAMETERS:
        copies = 1 if channel.transport is Transport.SHARED_BLOCK else replicas[channel.target]
    elif channel.carries is Carries.GRADIENTS:
        copies = 1  # its capacity counts one item a replica already
    return ChannelBytes(item, item * channel.capacity * copies)


def _bytes_of_step(layout: SlotLayout, name: str) -> int:
    """Returns one lane's rows of a field, or of all leaves of a structured one, at one step."""
    fields = [field for field in layout.fields if field.name == name or field.name.startswith(f"{name}/")]
    sizes = [math.prod(field.shape[2:]) * np.dtype(field.dtype).itemsize for field in fields]
    return layout.shape.rows_per_lane * sum(sizes)


def _bytes_seen(layout: SlotLayout, transport: Transport) -> int:
    """Returns the bytes of one inference call for a lane: the newest frame locally, all stacked frames in a remote call."""
    if transport is not Transport.CALLS:
        return _bytes_of_step(layout, "observation") + _bytes_of_step(layout, "is_first")
    seen = sum(math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize for leaf in leaves(layout.spec.observation))
    return layout.shape.rows_per_lane * (seen + num_frames(layout.spec))


def _bytes_chosen(layout: SlotLayout, transport: Transport) -> int:
    """Returns the bytes of a reply for one lane and step: actions, and recorded extras from a remote server."""
    action = _bytes_of_step(layout, "action")
    if transport is not Transport.CALLS:
        return action
    return action + _bytes_of_step(layout, "extras") + _bytes_of_step(layout, "policy_version")
