"""VDN: a team's value is the sum of its agents' values. Source: Sunehag et al. 2018 (arXiv:1706.05296).

Actions that are best for each agent's own value are best for the sum, so that what was learned together is acted on apart.
`docs/algorithms/vdn.md` says what it cannot learn.
"""

import dataclasses

from agents.api import ReplayAgent
from agents.networks.config import NetworkConfig
from agents.networks.mixer import make_sum_mixer
from agents.team_q import make_team_q
from agents.team_q_config import TeamQConfig
from envpool_bridge.spec.specs import EnvSpec


@dataclasses.dataclass(frozen=True)
class VDNConfig(TeamQConfig):
    """Hyper-parameters: those of TeamQConfig."""


def make_vdn(config: VDNConfig, spec: EnvSpec, network: NetworkConfig) -> ReplayAgent:
    """VDN for this environment and network. Raises UserError where they do not fit."""
    return make_team_q("vdn", config, spec, network, make_sum_mixer())
