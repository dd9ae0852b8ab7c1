"""What the on-policy agents share beside their mathematics in `agents/ops/returns.py`: how they are put together and make steps."""

import dataclasses
from functools import partial
from typing import Any, Protocol

import jax.numpy as jnp

from agents.api import (
    Agent,
    Array,
    GradientSteps,
    InitFn,
    LearnerState,
    Metrics,
    OnPolicy,
    Params,
    Summary,
    Trajectory,
    UpdateFn,
)
from agents.networks.acting import EXTRAS, PolicyNetwork, act
from agents.ops.gradient_steps import make_update
from agents.transforms.normalization import NormalisationConfig, with_normalisation
from envpool_bridge.spec.specs import EnvSpec


class OnPolicyConfig(Protocol):
    """What every on-policy configuration says.

    Attributes:
        discount: g.
        normalisation: of observations and rewards by running statistics.
    """

    @property
    def discount(self) -> float: ...

    @property
    def normalisation(self) -> NormalisationConfig: ...


def make_on_policy_agent(
    name: str,
    config: OnPolicyConfig,
    spec: EnvSpec,
    net: PolicyNetwork,
    init: InitFn,
    learn: GradientSteps | UpdateFn,
    reward_clip: float | None = None,
) -> Agent:
    """Returns an agent that acts by `net` and learns from each trajectory once, with what `config` normalises.

    Args:
        name: of the algorithm.
        config: of the algorithm.
        spec: of the environment.
        net: bound to the spec.
        init: first learner state.
        learn: the update cut at its gradients, or the update as it is where it cannot be cut.
        reward_clip: largest absolute reward, in environment units: rewards are clipped before they are scaled. None: off.
    """
    steps, update = (learn, make_update(learn)) if isinstance(learn, GradientSteps) else (None, learn)
    agent = Agent(
        name=name,
        init=init,
        initial_agent_state=net.initial_state,
        act=partial(act, net),
        update=update,
        extras=EXTRAS,
        data=OnPolicy(),
        gradient_steps=steps,
    )
    agent = with_normalisation(agent, config.normalisation, spec, config.discount)
    return agent if reward_clip is None else _with_clipped_rewards(agent, reward_clip)


def _with_clipped_rewards(agent: Agent, limit: float) -> Agent:
    """Returns the agent, which learns from rewards clipped to [-limit, limit]."""

    def clipped(batch: Trajectory) -> Trajectory:
        return dataclasses.replace(batch, reward=jnp.clip(batch.reward, -limit, limit))

    def update(state: LearnerState, batch: Trajectory, key: Array) -> tuple[LearnerState, Metrics]:
        return agent.update(state, clipped(batch), key)

    steps = agent.gradient_steps
    if steps is None:
        return agent._replace(update=update)
    inner = steps.prepare

    def prepare(params: Params, extra: Any, batch: Trajectory, key: Array) -> tuple[Any, Summary]:
        return inner(params, extra, clipped(batch), key)

    return agent._replace(update=update, gradient_steps=steps._replace(prepare=prepare))
