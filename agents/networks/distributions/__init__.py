"""Action distributions over network outputs. Each row samples with its own key, so its action does not depend on the batch.

Each distribution is a bundle of pure functions of `parameters`, the output of the network's policy head.
"""

from agents.networks.distributions.categorical import categorical, multi_categorical
from agents.networks.distributions.distribution import Distribution
from agents.networks.distributions.for_spec import distribution_for, leaf_distributions
from agents.networks.distributions.joint import joint
from agents.networks.distributions.masking import ILLEGAL, find_mask, make_legal, mask_logits
from agents.networks.distributions.normal import diagonal_normal, tanh_normal

__all__ = [
    "ILLEGAL",
    "Distribution",
    "categorical",
    "diagonal_normal",
    "distribution_for",
    "find_mask",
    "joint",
    "leaf_distributions",
    "make_legal",
    "mask_logits",
    "multi_categorical",
    "tanh_normal",
]
