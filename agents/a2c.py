"""Advantage actor-critic: one gradient step on the advantages of each trajectory. A3C where replicas push at their own pace.

Source: Mnih et al. 2016 (arXiv:1602.01783), section 4 and algorithm S3. `docs/algorithms/a2c.md` lists what deviates.
"""

import dataclasses
from functools import partial

from agents.api import Agent, Array, Trajectory
from agents.networks.actor_critic import ActorCritic
from agents.networks.config import NetworkConfig
from agents.one_step import OneStepConfig, Targets, make_one_step_agent
from agents.ops import returns
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import EnvSpec


@dataclasses.dataclass(frozen=True)
class A2CConfig(OneStepConfig):
    """Hyper-parameters; defaults of the usual code (OpenAI Baselines) where the paper drew them at random.

    Attributes:
        gae_lambda: lambda of GAE; 1 takes all rewards of the trajectory, as the paper does, 0 is the one-step actor-critic.
    """

    gae_lambda: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 <= self.gae_lambda <= 1.0:
            raise UserError(f"gae_lambda must lie in [0, 1]: got {self.gae_lambda}")


def make_a2c(config: A2CConfig, spec: EnvSpec, network: NetworkConfig | ActorCritic) -> Agent:
    """A2C for this environment and network. Raises UserError where they do not fit."""
    return make_one_step_agent("a2c", config, partial(targets, config), spec, network)


def targets(config: A2CConfig, batch: Trajectory, log_ratio: Array, value: Array) -> Targets:
    """GAE and lambda-returns, every valid step counted; the ratio is taken to be 1."""
    del log_ratio
    advantage = returns.gae(
        batch.reward,
        value,
        batch.terminated,
        batch.truncated,
        batch.valid,
        discount=config.discount,
        lambda_=config.gae_lambda,
    )
    return Targets(advantage, advantage + value[:-1], batch.valid.astype(value.dtype), {})
