"""Value decomposition networks (VDN): a team's value is the sum of its agents' values. A variant of QMIX.

Source: Sunehag et al. 2018 (arXiv:1706.05296). Each agent can maximize its own value alone, because the action that is best for it
is best for the sum. `docs/algorithms/vdn.md` lists the limits of a sum.
"""

import dataclasses

from agents.api import ReplayAgent
from agents.binding import keeps_binding
from agents.multi_agent.qmix import TeamQConfig, make_team_q
from agents.networks.config import NetworkConfig
from agents.networks.mixer import make_sum_mixer
from envpool_bridge.spec.specs import EnvSpec


@dataclasses.dataclass(frozen=True)
class VDNConfig(TeamQConfig):
    """Hyper-parameters: those of TeamQConfig."""


@keeps_binding
def make_vdn(config: VDNConfig, spec: EnvSpec, network: NetworkConfig) -> ReplayAgent:
    """Returns a VDN agent; raises UserError where configuration, environment and network do not fit."""
    return make_team_q("vdn", config, spec, network, make_sum_mixer())
