"""Deep deterministic policy gradients. Source: Lillicrap et al. 2016 (arXiv:1509.02971), algorithm 1.

DDPG is TD3 without its three additions: one critic, an actor that learns at every step, targets that are not smoothed.
`docs/algorithms/ddpg.md` lists what deviates.
"""

import dataclasses

from agents.api import ReplayAgent
from agents.continuous_control import Bound, make_continuous_agent
from agents.networks.config import NetworkConfig
from agents.ops.continuous_config import ContinuousConfig
from agents.td3 import TD3Config, bind_td3
from envpool_bridge.spec.specs import EnvSpec


@dataclasses.dataclass(frozen=True)
class DDPGConfig(ContinuousConfig):
    """Hyper-parameters; defaults of the DDPG that Fujimoto et al. 2018 tuned, table 3, with the batch and memory of TD3's code.

    Attributes:
        exploration_noise: deviation of the Gaussian noise that training adds to actions scaled to [-1, 1].
    """

    actor_learning_rate: float = 1e-3
    critic_learning_rate: float = 1e-3
    exploration_noise: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        _as_td3(self)  # refuses the noise


def make_ddpg(config: DDPGConfig, spec: EnvSpec, network: NetworkConfig) -> ReplayAgent:
    """DDPG for this environment and network. Raises UserError where they do not fit."""
    return make_continuous_agent(bind_ddpg(config, spec, network))


def bind_ddpg(config: DDPGConfig, spec: EnvSpec, network: NetworkConfig) -> Bound:
    """The pieces that `make_ddpg` makes an agent of. Raises UserError as it does."""
    return bind_td3(_as_td3(config), spec, network, name="ddpg")


def _as_td3(config: DDPGConfig) -> TD3Config:
    same = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    return TD3Config(**same, num_critics=1, policy_delay=1, target_noise=0.0)
