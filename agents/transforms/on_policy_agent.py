"""Construction of on-policy agents: a policy network that acts, an update, and the wrappers around that update."""

import dataclasses
from functools import partial
from typing import Protocol

import jax.numpy as jnp

from agents.api import Agent, GradientSteps, InitFn, OnPolicy, Trajectory, UpdateFn
from agents.networks.acting import EXTRAS, PolicyNetwork, act
from agents.transforms.changed_trajectories import with_changed_trajectories
from agents.transforms.normalization import NormalizationConfig, with_normalization
from envpool_bridge.spec.specs import EnvSpec


class OnPolicyConfig(Protocol):
    """Settings that every on-policy algorithm has.

    Attributes:
        discount: g.
        normalization: Observations and rewards by running statistics.
    """

    @property
    def discount(self) -> float: ...

    @property
    def normalization(self) -> NormalizationConfig: ...


def make_on_policy_agent(
    name: str,
    config: OnPolicyConfig,
    spec: EnvSpec,
    net: PolicyNetwork,
    init: InitFn,
    update: UpdateFn,
    steps: GradientSteps | None,
    reward_clip: float | None = None,
) -> Agent:
    """Returns an agent that acts by `net` and learns once from each trajectory.

    These wrappers are around the update, outermost first: clipped rewards, normalization.
    `jaxsrl.learner.learning_agent` adds those of a run.

    Args:
        name: Name of the algorithm.
        config: Configuration of the algorithm.
        spec: Specification of the environment.
        net: Network bound to the spec.
        init: Makes the first learner state.
        update: Learns from one trajectory.
        steps: The same update in parts, for the plan `central`; None: the algorithm does not run under it.
        reward_clip: Largest absolute reward, in environment units. None: off.
    """
    agent = Agent(name, init, net.initial_state, partial(act, net), update, EXTRAS, OnPolicy(), steps)
    agent = with_normalization(agent, config.normalization, spec, config.discount)
    return agent if reward_clip is None else with_changed_trajectories(agent, partial(_clip_rewards, reward_clip))


def _clip_rewards(limit: float, batch: Trajectory) -> Trajectory:
    return dataclasses.replace(batch, reward=jnp.clip(batch.reward, -limit, limit))
