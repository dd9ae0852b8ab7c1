"""A branch from observations and one vector, such as an action."""

from collections.abc import Callable
from typing import Any, NamedTuple

from agents.api import Array, Observation, Params
from agents.networks.branch import Heads, Outputs, make_branch
from agents.networks.config import NetworkConfig
from agents.networks.observation_inputs import ObservationInputs
from envpool_bridge.spec.specs import ArraySpec, LeafSpec
from envpool_bridge.spec.tree import Path

_OBSERVATION = "observation"


class VectorBranch(NamedTuple):
    """Bound to an environment's spec.

    Attributes:
        init: Returns parameters; the key is consumed.
        outputs: Maps (params, observation [B, ...], vector [B, D]) to each head's [B, num_outputs]; [T, B] may replace [B].
    """

    init: Callable[[Array], Params]
    outputs: Callable[[Params, Observation, Array], Outputs]


def make_vector_branch(
    config: NetworkConfig, inputs: ObservationInputs, name: str, num_elements: int, heads: Heads
) -> VectorBranch:
    """Returns a branch that takes the vector as one more leaf of the observation.

    It is next to the elements of vectors, and after the convolutions of images.

    Args:
        config: Network.
        inputs: Leaves of the observation.
        name: Name of the vector in the parameters.
        num_elements: D.
        heads: Heads by name.
    """
    leaves: tuple[tuple[Path, LeafSpec], ...] = tuple(((_OBSERVATION, *path), leaf) for path, leaf in inputs.leaves)
    vector_leaf = ((name,), ArraySpec((num_elements,), "float32"))
    branch = make_branch(config, ObservationInputs((*leaves, vector_leaf), inputs.torso, named=True), heads)

    def outputs(params: Params, observation: Observation, vector: Array) -> Outputs:
        both: Any = {_OBSERVATION: observation, name: vector}
        return branch.outputs(params, both)

    return VectorBranch(branch.init, outputs)
