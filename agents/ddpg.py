"""Deep deterministic policy gradients (DDPG). Source: Lillicrap et al. 2016 (arXiv:1509.02971), algorithm 1.

DDPG is TD3 (`agents.td3`) without its three additions: it has one critic, its actor learns at every step, and its target actions
have no noise. `docs/algorithms/ddpg.md` lists every deviation.
"""

import dataclasses

from agents.api import ReplayAgent, ReplayConfig
from agents.binding import keeps_binding
from agents.networks.config import NetworkConfig
from agents.ops.optimizers import OptimizerConfig
from agents.ops.schedules import CONSTANT, ScheduleConfig
from agents.settings import complete
from agents.td3 import DEFAULT_REPLAY, TD3Config, make_td3
from envpool_bridge.spec.specs import EnvSpec


@dataclasses.dataclass(frozen=True)
class DDPGConfig:
    """Hyper-parameters; defaults of the DDPG tuned by Fujimoto et al. 2018, table 3, with batch and memory of TD3's code.

    Attributes:
        replay: Sizes, rates and priorities of the replay buffer.
        total_updates: Trajectories of the whole run; needed only by schedules, and by priorities, whose correction grows.
        discount: g, per env step.
        n_step: Rewards of a return before it bootstraps; off-policy if more than 1.
        tau: Step size of the target networks towards the learned ones.
        actor_learning_rate: Initial learning rate of the actor.
        critic_learning_rate: Initial learning rate of the critics.
        learning_rate_schedule: Change of all learning rates over the run.
        optimizer: Settings of all optimizers, each with its own state.
        random_updates: Trajectories collected by uniformly random actions. None: all before the first gradient step.
        importance_sampling_exponent: beta of prioritized replay at the first update; it grows to 1 over the run.
        normalize_observations: Whether observations are normalized by the statistics of all samples.
        exploration_noise: Standard deviation of the Gaussian noise on actions scaled to [-1, 1] during training.
    """

    replay: ReplayConfig = DEFAULT_REPLAY
    total_updates: int = 0
    discount: float = 0.99
    n_step: int = 1
    tau: float = 0.005
    actor_learning_rate: float = 1e-3
    critic_learning_rate: float = 1e-3
    learning_rate_schedule: ScheduleConfig = CONSTANT
    optimizer: OptimizerConfig = OptimizerConfig(epsilon=1e-8)
    random_updates: int | None = None
    importance_sampling_exponent: float = 0.4
    normalize_observations: bool = False
    exploration_noise: float = 0.1

    def __post_init__(self) -> None:
        complete(self)
        td3_config(self)  # raises UserError


def td3_config(config: DDPGConfig) -> TD3Config:
    """Returns the configuration of TD3 that equals this one of DDPG."""
    fields = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    return TD3Config(**fields, num_critics=1, policy_delay=1, target_noise=0.0)


@keeps_binding
def make_ddpg(config: DDPGConfig, spec: EnvSpec, network: NetworkConfig) -> ReplayAgent:
    """Returns a DDPG agent; raises UserError where configuration, environment and network do not fit."""
    return make_td3(td3_config(config), spec, network, name="ddpg")
