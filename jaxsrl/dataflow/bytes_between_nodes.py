"""How many bytes a plan on a cluster sends from node to node: arithmetic only."""

import dataclasses

from jaxsrl.dataflow.bytes_per_item import PlanBytes
from jaxsrl.dataflow.plan import Plan


@dataclasses.dataclass(frozen=True)
class BytesBetweenNodes:
    """Bytes that cross the network, if the learner is on a node of its own.

    Attributes:
        trajectories: an update: one slot of every host, to the learner's node.
        parameters: an update: one version to every node that has hosts, however many.
        env_step: of both, an environment step.
    """

    trajectories: int
    parameters: int
    env_step: float


def bytes_between_nodes(plan: Plan, sizes: PlanBytes) -> BytesBetweenNodes:
    """What flows each update; `sizes` are those of the plan, whose environments have nodes."""
    trajectories = sizes.slot * plan.environments.replicas
    parameters = sizes.params * len(set(plan.environments.nodes))
    steps = plan.num_rows * plan.shape.rollout_length
    return BytesBetweenNodes(trajectories, parameters, (trajectories + parameters) / steps)
