"""What the on-policy agents share beside their mathematics in `agents/ops/returns.py`: how they are put together and make steps."""

import dataclasses
from functools import partial
from typing import Any, Protocol

import jax.numpy as jnp
import optax

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
from agents.ops import returns
from agents.ops.gradient_steps import make_update
from agents.ops.schedules import scale_by_schedule
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


class ClippedConfig(Protocol):
    """What the clipped surrogate needs to know.

    Attributes:
        clip_epsilon: how far the probability ratio counts.
        normalise_advantage: whether advantages are standardised over the steps that count.
    """

    @property
    def clip_epsilon(self) -> float: ...

    @property
    def normalise_advantage(self) -> bool: ...


class ActedBatch(Protocol):
    """What the clipped surrogate needs of steps, [T, B] each.

    Attributes:
        behaviour_log_prob: of the action when it was done, nats.
        advantage: reward units.
        weight: 0 where the step does not count.
    """

    @property
    def behaviour_log_prob(self) -> Array: ...

    @property
    def advantage(self) -> Array: ...

    @property
    def weight(self) -> Array: ...


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


def clipped_adam(rate: optax.Schedule, max_grad_norm: float, epsilon: float) -> optax.GradientTransformation:
    """Returns Adam behind a clip of the gradient's global norm.

    Args:
        rate: learning rate, of `num_updates`.
        max_grad_norm: largest global norm.
        epsilon: added to the square root of the second moment.
    """
    clip = optax.clip_by_global_norm(max_grad_norm)
    return optax.chain(clip, optax.scale_by_adam(eps=epsilon), scale_by_schedule(rate))


def clipped_policy_loss(
    config: ClippedConfig, log_prob: Array, batch: ActedBatch, dual_clip: float | None = None
) -> tuple[Array, Metrics]:
    """PPO's surrogate with its sign turned: minus the clipped gain, over the steps that count; and how far the policy moved.

    Source: Schulman et al. 2017 (arXiv:1707.06347), eq. 7.

    Args:
        config: of the algorithm.
        log_prob: [T, B] float32, of the actions under the newest parameters, nats.
        batch: of the same steps.
        dual_clip: c > 1: where the advantage A < 0, the surrogate is at least c A (Ye et al. 2020); None: off.
    """
    mean = partial(returns.weighted_mean, weight=batch.weight)
    advantage = returns.standardise(batch.advantage, batch.weight) if config.normalise_advantage else batch.advantage
    log_ratio = log_ratio_of(log_prob, batch.behaviour_log_prob, batch.weight > 0)
    ratio = jnp.exp(log_ratio)
    clipped = jnp.clip(ratio, 1.0 - config.clip_epsilon, 1.0 + config.clip_epsilon)
    surrogate = jnp.minimum(ratio * advantage, clipped * advantage)
    if dual_clip is not None:
        surrogate = jnp.where(advantage < 0, jnp.maximum(surrogate, dual_clip * advantage), surrogate)
    loss = -mean(surrogate)
    return loss, {
        "loss/policy": loss,
        "policy/approx_kl": mean(approximate_kl(log_ratio)),
        "policy/clip_fraction": mean((jnp.abs(ratio - 1.0) > config.clip_epsilon).astype(ratio.dtype)),
    }


def log_ratio_of(log_prob: Array, behaviour_log_prob: Array, counts: Array) -> Array:
    """[T, B] log of target over behaviour probability, nats; 0 where the step does not count.

    What a reset step's log-ratio is may be anything; exp must not overflow there, or its gradient becomes NaN.
    """
    return jnp.where(counts, log_prob - behaviour_log_prob, 0.0)


def approximate_kl(log_ratio: Array) -> Array:
    """Of each step, nats: its mean is the low-variance estimate of KL(behaviour || target), E[(r - 1) - log r] (Schulman 2020).

    Never negative, and 0 where the newest policy acted.
    """
    return jnp.exp(log_ratio) - 1.0 - log_ratio
