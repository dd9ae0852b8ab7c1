"""IMPALA: an actor-critic on V-trace, for trajectories of parameters some updates old.

Source: Espeholt et al. 2018 (arXiv:1802.01561), section 4. `docs/algorithms/impala.md` lists what deviates.
"""

import dataclasses
from functools import partial

import jax.numpy as jnp

from agents.api import Agent, Array, Trajectory
from agents.networks.actor_critic import ActorCritic
from agents.networks.config import NetworkConfig
from agents.one_step import OneStepConfig, Targets, make_one_step_agent
from agents.ops import returns
from agents.ops.vtrace import VTraceConfig, vtrace
from envpool_bridge.spec.specs import EnvSpec


@dataclasses.dataclass(frozen=True)
class IMPALAConfig(OneStepConfig):
    """Hyper-parameters; defaults of the paper's Atari experiments where means instead of sums leave them what they were.

    Attributes:
        vtrace: bounds on the probability ratios, and lambda.
    """

    learning_rate: float = 6e-4
    vtrace: VTraceConfig = dataclasses.field(default_factory=VTraceConfig)


def make_impala(config: IMPALAConfig, spec: EnvSpec, network: NetworkConfig | ActorCritic) -> Agent:
    """IMPALA for this environment and network. Raises UserError where they do not fit."""
    return make_one_step_agent("impala", config, partial(targets, config), spec, network)


def targets(config: IMPALAConfig, batch: Trajectory, log_ratio: Array, value: Array) -> Targets:
    """V-trace's, every valid step counted. Metrics are of the ratio before and by `rho_bar`."""
    found = vtrace(
        log_ratio,
        batch.reward,
        value,
        batch.terminated,
        batch.truncated,
        batch.valid,
        discount=config.discount,
        config=config.vtrace,
    )
    weight, ratio = batch.valid.astype(value.dtype), jnp.exp(log_ratio)
    clipped = (ratio > config.vtrace.rho_bar).astype(value.dtype)
    metrics = {
        "vtrace/rho_mean": returns.weighted_mean(jnp.minimum(config.vtrace.rho_bar, ratio), weight),
        "vtrace/clipped_fraction": returns.weighted_mean(clipped, weight),
    }
    return Targets(found.advantage, found.target, weight, metrics)
