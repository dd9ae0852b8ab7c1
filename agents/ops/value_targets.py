"""Advantages and value targets of a trajectory, by the estimator that a configuration names."""

from typing import NamedTuple, Protocol

import jax.numpy as jnp

from agents.api import Array, Trajectory
from agents.ops import returns
from agents.ops.vtrace import VTraceConfig, vtrace


class TargetsConfig(Protocol):
    """What a configuration must say of its targets; see `agents.ppo_config.PPOConfig`."""

    @property
    def targets(self) -> str: ...
    @property
    def discount(self) -> float: ...
    @property
    def gae_lambda(self) -> float: ...
    @property
    def vtrace_clip(self) -> float: ...


class ValueTargets(NamedTuple):
    """Attributes: advantage: [T, B]; target: [T, B] of the value; reward units, 0 where not valid."""

    advantage: Array
    target: Array


def make_targets(config: TargetsConfig, trajectory: Trajectory, value: Array, log_ratio: Array) -> ValueTargets:
    """Targets under the newest parameters.

    Args:
        config: which estimator: "gae" (then the target is advantage + value), or "vtrace".
        trajectory: of T steps of B rows.
        value: [T+1, B] float32, of every observation, reward units.
        log_ratio: [T, B] float32, log-probability of each action under the newest parameters less that when it was chosen;
            of interest to "vtrace" alone.
    """
    if config.targets == "vtrace":
        return _vtrace_targets(config, trajectory, value, log_ratio)
    ends = (trajectory.terminated, trajectory.truncated, trajectory.valid)
    advantage = returns.gae(trajectory.reward, value, *ends, discount=config.discount, lambda_=config.gae_lambda)
    return ValueTargets(advantage, advantage + value[:-1])


def _vtrace_targets(config: TargetsConfig, trajectory: Trajectory, value: Array, log_ratio: Array) -> ValueTargets:
    clip = config.vtrace_clip
    reward, terminated, truncated, valid = (
        trajectory.reward,
        trajectory.terminated,
        trajectory.truncated,
        trajectory.valid,
    )
    found = vtrace(
        log_ratio,
        reward,
        value,
        terminated,
        truncated,
        valid,
        discount=config.discount,
        config=VTraceConfig(rho_bar=clip, c_bar=clip, lambda_=config.gae_lambda),
    )
    # V-trace's advantage without its ratio: the surrogate multiplies by its own.
    following = jnp.concatenate([found.target[1:], value[-1:]])
    onward = value[1:] + config.gae_lambda * ~(terminated | truncated) * (following - value[1:])
    advantage = (reward + config.discount * ~terminated * onward - value[:-1]) * valid
    return ValueTargets(advantage, found.target)
