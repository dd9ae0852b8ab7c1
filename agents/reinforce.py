"""REINFORCE with a baseline: the policy gradient of the returns that episodes had. MSRL calls it PG.

Source: Williams 1992; Sutton and Barto 2018, section 13.4. `docs/algorithms/reinforce.md` lists what deviates.
"""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp

from agents.api import Agent, Array, Trajectory
from agents.networks.actor_critic import ActorCritic
from agents.networks.config import NetworkConfig
from agents.one_step import OneStepConfig, OptimizerName, Targets, make_one_step_agent
from agents.ops import returns
from envpool_bridge.spec.specs import EnvSpec


@dataclasses.dataclass(frozen=True)
class REINFORCEConfig(OneStepConfig):
    """Hyper-parameters.

    Attributes:
        baseline: subtract the value of the observation from the return. Without it, and without `bootstrap`, no value is learned.
        bootstrap: what follows an episode's last step in the trajectory. False: nothing that the episode did not have: one that
            the clock ended has the return it got, and steps whose episode goes on after the trajectory do not count. True: the
            value of the observation reached, in both cases; every valid step counts.
    """

    learning_rate: float = 1e-3
    max_grad_norm: float = 10.0
    optimizer: OptimizerName = "adam"
    baseline: bool = True
    bootstrap: bool = False


def make_reinforce(config: REINFORCEConfig, spec: EnvSpec, network: NetworkConfig | ActorCritic) -> Agent:
    """REINFORCE for this environment and network. Raises UserError where they do not fit."""
    if not (config.baseline or config.bootstrap):
        config = dataclasses.replace(config, value_coef=0.0)
    return make_one_step_agent("reinforce", config, partial(targets, config), spec, network)


def targets(config: REINFORCEConfig, batch: Trajectory, log_ratio: Array, value: Array) -> Targets:
    """Returns of episodes to their ends, less the baseline; the ratio is taken to be 1."""
    del log_ratio
    bootstrap = value if config.bootstrap else jnp.zeros_like(value)
    episode_return, is_complete = monte_carlo(
        batch.reward, bootstrap, batch.terminated, batch.truncated, batch.valid, discount=config.discount
    )
    counted = batch.valid if config.bootstrap else is_complete
    weight = counted.astype(value.dtype)
    advantage = episode_return - value[:-1] if config.baseline else episode_return
    metrics = {
        "returns/complete_fraction": returns.weighted_mean(
            is_complete.astype(value.dtype), batch.valid.astype(value.dtype)
        )
    }
    return Targets(jnp.where(counted, advantage, 0.0), episode_return, weight, metrics)


def monte_carlo(
    reward: Array, value: Array, terminated: Array, truncated: Array, valid: Array, *, discount: float
) -> tuple[Array, Array]:
    """Discounted returns to the end of each episode, and whether that end lies in the trajectory.

    Args:
        reward: [T, B] float32.
        value: [T+1, B] float32, of what follows a truncated step or the trajectory.
        terminated: [T, B] bool.
        truncated: [T, B] bool.
        valid: [T, B] bool.
        discount: g in [0, 1].

    Returns:
        [T, B] float32 returns, and [T, B] bool: the episode ended (terminated or truncated) at this step or a later one of the
        trajectory. 0 and False where not valid.
    """
    ended = terminated | truncated
    after_end = discount * jnp.where(terminated, 0.0, value[1:])

    def step(later: tuple[Array, Array], inputs: tuple[Array, ...]) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        reward_t, after_end_t, ended_t, valid_t = inputs
        later_return, later_complete = later
        total = reward_t + jnp.where(ended_t, after_end_t, discount * later_return)
        found = jnp.where(valid_t, total, 0.0), valid_t & (ended_t | later_complete)
        return found, found

    last = value[-1], jnp.zeros_like(ended[0])
    _, found = jax.lax.scan(step, last, (reward, after_end, ended, valid), reverse=True, unroll=8)
    return found
