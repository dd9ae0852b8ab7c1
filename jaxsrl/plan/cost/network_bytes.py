"""Bytes that a plan on a cluster sends between nodes: arithmetic only."""

import dataclasses

from jaxsrl.plan.cost.channel_bytes import PlanBytes
from jaxsrl.plan.fragment import Carries, Transport
from jaxsrl.plan.plan import Plan


@dataclasses.dataclass(frozen=True)
class BytesBetweenNodes:
    """Bytes that cross the network, if the learner is on a node of its own.

    Attributes:
        trajectories: an update: one slot of every host, to the learner's node, or to that of replay.
        parameters: an update: one version to every node that acts, however many hosts or servers it has.
        env_step: of all, an environment step.
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
