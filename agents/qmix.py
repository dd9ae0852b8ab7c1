"""QMIX: a team's value rises with each of its agents' values, in a way that the state decides. Source: Rashid et al. 2018.

arXiv:1803.11485. As with VDN, what is best for each agent's own value is best for the team's; but how much an agent's value counts
may depend on the others' values and on the state. `docs/algorithms/qmix.md` lists every choice made here.
"""

import dataclasses

from agents.api import ReplayAgent
from agents.networks.config import NetworkConfig
from agents.networks.mixer import make_monotone_mixer
from agents.team_q import make_team_q
from agents.team_q_config import TeamQConfig
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import EnvSpec


@dataclasses.dataclass(frozen=True)
class QMIXConfig(TeamQConfig):
    """Hyper-parameters: those of TeamQConfig, and of the mixer.

    Attributes:
        mixing_size: width of the mixing layer; 32 in the paper.
    """

    mixing_size: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mixing_size < 1:
            raise UserError(f"mixing_size must be at least 1: got {self.mixing_size}")


def make_qmix(config: QMIXConfig, spec: EnvSpec, network: NetworkConfig) -> ReplayAgent:
    """QMIX for this environment and network. Raises UserError where they do not fit."""
    return make_team_q("qmix", config, spec, network, make_monotone_mixer(network, spec, config.mixing_size))
