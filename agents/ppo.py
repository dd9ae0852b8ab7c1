"""PPO-clip as pure functions. Source: Schulman et al. 2017 (arXiv:1707.06347), eq. 7 and 9.

`docs/agents/ppo.md` lists every detail that the paper leaves open, and what is chosen here.
"""

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from agents import returns, schedules
from agents.acting import EXTRAS, act
from agents.api import (
    Action,
    Agent,
    Array,
    GradientSteps,
    LearnerState,
    Metrics,
    Observation,
    OnPolicy,
    Params,
    Progress,
    Summary,
    Trajectory,
)
from agents.gradient_steps import make_apply, make_update
from agents.networks.actor_critic import ActorCritic, make_actor_critic
from agents.networks.config import NetworkConfig
from agents.normalisation import NormalisationConfig, with_normalisation
from envpool_bridge.errors import UserError
from envpool_bridge.specs import EnvSpec


@dataclasses.dataclass(frozen=True)
class PPOConfig:
    """Hyper-parameters; defaults of the paper's Atari and MuJoCo experiments where it gives them.

    Attributes:
        learning_rate: Adam's, at the start.
        learning_rate_schedule: "constant", or "linear" to 0 after `total_updates`.
        total_updates: updates of the whole run, for the schedule.
        discount: g.
        gae_lambda: lambda of GAE.
        clip_epsilon: how far the probability ratio counts.
        value_clip_epsilon: how far a value may move from its old one, in reward units; None does not clip.
        value_coef: weight of the value error.
        entropy_coef: weight of the entropy bonus.
        max_grad_norm: gradients are scaled down to this global norm.
        num_epochs: passes over a trajectory.
        num_minibatches: gradient steps a pass; divides T.
        normalise_advantage: standardise advantages in each minibatch.
        target_kl: once a minibatch's approximate KL (nats) exceeds it, the update's remaining steps do nothing; None: off.
        adam_epsilon: 1e-5 as in the authors' code.
        normalisation: of observations and rewards by running statistics; off by default.
    """

    learning_rate: float = 3e-4
    learning_rate_schedule: schedules.Kind = "constant"
    total_updates: int = 0
    discount: float = 0.99
    gae_lambda: float = 0.95
    clip_epsilon: float = 0.2
    value_clip_epsilon: float | None = None
    value_coef: float = 0.5
    entropy_coef: float = 0.01
    max_grad_norm: float = 0.5
    num_epochs: int = 4
    num_minibatches: int = 4
    normalise_advantage: bool = True
    target_kl: float | None = None
    adam_epsilon: float = 1e-5
    normalisation: NormalisationConfig = dataclasses.field(default_factory=NormalisationConfig)

    def __post_init__(self) -> None:
        if isinstance(self.normalisation, Mapping):  # as a checkpoint's JSON has it
            object.__setattr__(self, "normalisation", NormalisationConfig(**self.normalisation))
        for name in ("num_epochs", "num_minibatches"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1: got {getattr(self, name)}")
        for name in ("discount", "gae_lambda"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise UserError(f"{name} must lie in [0, 1]: got {getattr(self, name)}")
        for name in ("learning_rate", "clip_epsilon", "max_grad_norm"):
            if not getattr(self, name) > 0.0:
                raise UserError(f"{name} must be positive: got {getattr(self, name)}")

    @property
    def num_gradient_steps(self) -> int:
        """Gradient steps of one update."""
        return self.num_epochs * self.num_minibatches


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Batch:
    """What the loss needs of each step; [T, B, ...] each leaf, `weight` 0 where the step only reset."""

    observation: Observation
    action: Action
    behaviour_log_prob: Array
    old_value: Array
    advantage: Array
    target_value: Array
    weight: Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Prepared:
    """A trajectory ready for its gradients.

    Attributes:
        batch: [T, B, ...] each.
        order: [num_gradient_steps, T / num_minibatches] int32, the steps of time in each minibatch.
    """

    batch: Batch
    order: Array


def make_ppo(config: PPOConfig, spec: EnvSpec, network: NetworkConfig) -> Agent:
    """PPO for this environment and network. Raises UserError where they do not fit."""
    net = make_actor_critic(network, spec)
    schedule = schedules.make_schedule(
        config.learning_rate_schedule, config.learning_rate, config.total_updates * config.num_gradient_steps
    )
    optimizer = optax.chain(
        optax.clip_by_global_norm(config.max_grad_norm), optax.adam(schedule, eps=config.adam_epsilon)
    )
    steps = GradientSteps(
        num_steps=config.num_gradient_steps,
        prepare=partial(prepare, config, net),
        gradient=partial(gradient, config, net),
        apply=make_apply(optimizer, _kl_stop(config)),
        finish=partial(finish, config, schedule),
    )
    agent = Agent(
        name="ppo",
        init=partial(init, net, optimizer),
        initial_agent_state=net.initial_state,
        act=partial(act, net),
        update=make_update(steps),
        extras=EXTRAS,
        data=OnPolicy(),
        gradient_steps=steps,
    )
    return with_normalisation(agent, config.normalisation, spec, config.discount)


def init(net: ActorCritic, optimizer: optax.GradientTransformation, key: Array) -> LearnerState:
    """First learner state. `key` is consumed."""
    params = net.init(key)
    return LearnerState(params, optimizer.init(params), num_updates=jnp.zeros((), jnp.int32))


def make_batch(config: PPOConfig, net: ActorCritic, params: Params, trajectory: Trajectory) -> Batch:
    """Advantages and value targets of a trajectory, under the newest parameters."""
    value = net.value(params, trajectory.observation)  # [T+1, B]
    advantage = returns.gae(
        trajectory.reward,
        value,
        trajectory.terminated,
        trajectory.truncated,
        trajectory.valid,
        discount=config.discount,
        lambda_=config.gae_lambda,
    )
    return Batch(
        observation=jax.tree.map(lambda leaf: leaf[:-1], trajectory.observation),
        action=trajectory.action,
        behaviour_log_prob=trajectory.extras["behaviour_log_prob"],
        old_value=value[:-1],
        advantage=advantage,
        target_value=advantage + value[:-1],
        weight=trajectory.valid.astype(value.dtype),
    )


def loss(config: PPOConfig, net: ActorCritic, params: Params, batch: Batch) -> tuple[Array, Metrics]:
    """Clipped surrogate + value error - entropy bonus; steps of weight 0 do not count."""
    parameters, value = net.both(params, batch.observation)
    mean = partial(returns.weighted_mean, weight=batch.weight)
    advantage = returns.standardise(batch.advantage, batch.weight) if config.normalise_advantage else batch.advantage
    log_ratio = net.distribution.log_prob(parameters, batch.action) - batch.behaviour_log_prob
    # A reset step's log-ratio may be anything; exp must not overflow there, or its gradient becomes NaN.
    log_ratio = jnp.where(batch.weight > 0, log_ratio, 0.0)
    ratio = jnp.exp(log_ratio)
    clipped = jnp.clip(ratio, 1.0 - config.clip_epsilon, 1.0 + config.clip_epsilon)
    policy = -mean(jnp.minimum(ratio * advantage, clipped * advantage))
    value_error = 0.5 * mean(_squared_value_error(config, value, batch))
    entropy = mean(net.distribution.entropy(parameters))
    total = policy + config.value_coef * value_error - config.entropy_coef * entropy
    metrics = {
        "loss/total": total,
        "loss/policy": policy,
        "loss/value": value_error,
        "policy/entropy": entropy,
        # The low-variance estimate of KL(behaviour || target): E[(r - 1) - log r] (Schulman 2020).
        "policy/approx_kl": mean(ratio - 1.0 - log_ratio),
        "policy/clip_fraction": mean((jnp.abs(ratio - 1.0) > config.clip_epsilon).astype(ratio.dtype)),
    }
    return total, metrics


def prepare(
    config: PPOConfig, net: ActorCritic, params: Params, extra: Any, batch: Trajectory, key: Array
) -> tuple[Prepared, Summary]:
    """Advantages, targets and the minibatches of all epochs. `key` is consumed.

    Raises:
        UserError: `num_minibatches` does not divide T.
    """
    del extra
    steps = make_batch(config, net, params, batch)
    order = minibatch_order(config, steps.weight.shape[0], key)
    return Prepared(steps, order), {"value/explained_variance": _explained_variance(steps)}


def minibatch_order(config: PPOConfig, length: int, key: Array) -> Array:
    """[num_gradient_steps, length / num_minibatches] int32: each epoch's permutation of time, cut. `key` is consumed.

    Only T is permuted and cut: B, which may be sharded over devices, stays where it is, so nothing is gathered.

    Raises:
        UserError: `num_minibatches` does not divide `length`.
    """
    if length % config.num_minibatches:
        raise UserError(
            f"num_minibatches must divide rollout_length: got {config.num_minibatches} and {length}; "
            "minibatches are cut along time"
        )
    keys = jax.random.split(key, config.num_epochs)
    order = jax.vmap(lambda epoch_key: jax.random.permutation(epoch_key, length))(keys)
    return order.reshape(config.num_gradient_steps, length // config.num_minibatches)


def gradient(
    config: PPOConfig, net: ActorCritic, params: Params, prepared: Prepared, step: Array
) -> tuple[Params, Metrics]:
    """Gradient of the loss over minibatch number `step`."""
    minibatch = jax.tree.map(lambda x: x[prepared.order[step]], prepared.batch)
    grads, metrics = jax.grad(partial(loss, config, net), has_aux=True)(params, minibatch)
    return grads, metrics | {"gradient/norm": optax.tree.norm(grads)}


def finish(
    config: PPOConfig,
    schedule: optax.Schedule,
    state: LearnerState,
    progress: Progress,
    summary: Summary,
    step_metrics: Metrics,
) -> tuple[LearnerState, Metrics]:
    """The next learner state, and metrics averaged over the gradient steps."""
    result = summary | {name: jnp.mean(values) for name, values in step_metrics.items()}
    result["update/skipped_minibatches"] = progress.num_skipped.astype(jnp.float32)
    result["learning_rate"] = jnp.asarray(schedule(state.num_updates * config.num_gradient_steps), jnp.float32)
    return LearnerState(progress.params, progress.opt_state, state.num_updates + 1), result


def _kl_stop(config: PPOConfig) -> Callable[[Metrics], Array] | None:
    target = config.target_kl
    return None if target is None else lambda metrics: metrics["policy/approx_kl"] > target


def _squared_value_error(config: PPOConfig, value: Array, batch: Batch) -> Array:
    error = jnp.square(value - batch.target_value)
    if config.value_clip_epsilon is None:
        return error
    epsilon = config.value_clip_epsilon
    clipped = batch.old_value + jnp.clip(value - batch.old_value, -epsilon, epsilon)
    return jnp.maximum(error, jnp.square(clipped - batch.target_value))


def _explained_variance(batch: Batch) -> Array:
    """1 - Var[target - value] / Var[target]; 0 where the targets do not vary."""
    mean = partial(returns.weighted_mean, weight=batch.weight)
    residual = batch.target_value - batch.old_value
    variance = mean(jnp.square(batch.target_value - mean(batch.target_value)))
    unexplained = mean(jnp.square(residual - mean(residual)))
    return jnp.where(variance > 0, 1.0 - unexplained / jnp.where(variance > 0, variance, 1.0), 0.0)
