"""How many bytes a plan on a cluster sends from node to node: arithmetic only."""

import dataclasses

from jaxsrl.dataflow.bytes_per_item import PlanBytes
from jaxsrl.dataflow.fragment import Transport
from jaxsrl.dataflow.plan import Plan


@dataclasses.dataclass(frozen=True)
class BytesBetweenNodes:
    """Bytes that cross the network, if the learner is on a node of its own.

    Attributes:
        trajectories: an update: one slot of every host, to the learner's node.
        parameters: an update: one version to every node that acts, however many hosts or servers it has.
        env_step: of all, an environment step.
        acting: an update: observations to servers on other nodes, and what these answer; 0 where hosts act themselves.
    """

    trajectories: int
    parameters: int
    env_step: float
    acting: int = 0


def bytes_between_nodes(plan: Plan, sizes: PlanBytes) -> BytesBetweenNodes:
    """What flows each update; `sizes` are those of the plan, whose environments have nodes."""
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
    return BytesBetweenNodes(trajectories, parameters, (trajectories + parameters + acting) / steps, acting)
