"""Actor-critics that take one gradient step a trajectory: what IMPALA, A2C and REINFORCE share.

They differ in what they make of a trajectory (`TargetsFn`): advantages, value targets, and which steps count.
"""

import dataclasses
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import optax

from agents.api import (
    Agent,
    Array,
    GradientSteps,
    LearnerState,
    Metrics,
    Params,
    Progress,
    Summary,
    Trajectory,
)
from agents.networks.actor_critic import ActorCritic
from agents.networks.config import NetworkConfig
from agents.networks.custom import bound_network
from agents.ops import returns, schedules
from agents.ops.gradient_steps import make_apply
from agents.ops.policy_gradient import approximate_kl, clipped_adam, log_ratio_of
from agents.transforms.normalization import NormalisationConfig
from agents.transforms.on_policy_agent import make_on_policy_agent
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import EnvSpec

OptimizerName = Literal["rmsprop", "adam"]


@dataclasses.dataclass(frozen=True)
class OneStepConfig:
    """Hyper-parameters of every such agent.

    Attributes:
        learning_rate: the optimizer's, at the start.
        learning_rate_schedule: "constant", or "linear" to 0 after `total_updates`.
        total_updates: updates of the whole run, for the schedule.
        discount: g.
        value_coef: weight of the value error.
        entropy_coef: weight of the entropy bonus.
        max_grad_norm: gradients are scaled down to this global norm.
        normalise_advantage: standardise advantages over the steps that count.
        optimizer: "rmsprop" (no momentum) or "adam".
        optimizer_epsilon: under the root for "rmsprop", as in TensorFlow; beside it for "adam".
        rmsprop_decay: of the running mean of squared gradients.
        rmsprop_initial_scale: its initial value. 1 as in TensorFlow: steps are those of plain gradient descent until it has decayed
            to squared gradients, after about 1,000 updates. 0: the first step is up to 10 times the learning rate per weight.
        normalisation: of observations and rewards by running statistics; off by default.
    """

    learning_rate: float = 7e-4
    learning_rate_schedule: schedules.Kind = "constant"
    total_updates: int = 0
    discount: float = 0.99
    value_coef: float = 0.5
    entropy_coef: float = 0.01
    max_grad_norm: float = 0.5
    normalise_advantage: bool = False
    optimizer: OptimizerName = "rmsprop"
    optimizer_epsilon: float = 1e-5
    rmsprop_decay: float = 0.99
    rmsprop_initial_scale: float = 1.0
    normalisation: NormalisationConfig = dataclasses.field(default_factory=NormalisationConfig)

    def __post_init__(self) -> None:
        for name in ("learning_rate", "max_grad_norm", "optimizer_epsilon"):
            if not getattr(self, name) > 0.0:
                raise UserError(f"{name} must be positive: got {getattr(self, name)}")
        for name in ("value_coef", "entropy_coef", "rmsprop_initial_scale"):
            if not getattr(self, name) >= 0.0:
                raise UserError(f"{name} must not be negative: got {getattr(self, name)}")
        if not 0.0 <= self.discount <= 1.0:
            raise UserError(f"discount must lie in [0, 1]: got {self.discount}")
        if not 0.0 <= self.rmsprop_decay < 1.0:
            raise UserError(f"rmsprop_decay must lie in [0, 1): got {self.rmsprop_decay}")
        if self.optimizer not in ("rmsprop", "adam"):
            raise UserError(f"optimizer must be 'rmsprop' or 'adam': got {self.optimizer!r}")


class Targets(NamedTuple):
    """What an algorithm makes of a trajectory.

    Attributes:
        advantage: [T, B] float32, what each log-probability is multiplied by.
        value: [T, B] float32, what the values are fitted to.
        weight: [T, B] float32, 0 where a step does not count.
        metrics: float32 scalars.
    """

    advantage: Array
    value: Array
    weight: Array
    metrics: Metrics


class TargetsFn(Protocol):
    """Targets from a trajectory, its [T, B] log probability ratios (0 where not valid) and its [T+1, B] values.

    What is given carries no gradient.
    """

    def __call__(self, batch: Trajectory, log_ratio: Array, value: Array) -> Targets: ...


def make_one_step_agent(
    name: str, config: OneStepConfig, targets: TargetsFn, spec: EnvSpec, network: NetworkConfig | ActorCritic
) -> Agent:
    """An agent whose update is one step on the loss of `targets`. Raises UserError where spec and network do not fit."""
    net = bound_network(network, spec)
    schedule = schedules.make_schedule(config.learning_rate_schedule, config.learning_rate, config.total_updates)
    optimizer = make_optimizer(config, schedule)
    steps = GradientSteps(
        num_steps=1,
        prepare=prepare,
        gradient=partial(gradient, config, net, targets),
        apply=make_apply(optimizer),
        finish=partial(finish, schedule),
    )
    return make_on_policy_agent(name, config, spec, net, partial(init, net, optimizer), steps)


def init(net: ActorCritic, optimizer: optax.GradientTransformation, key: Array) -> LearnerState:
    """First learner state. `key` is consumed."""
    params = net.init(key)
    return LearnerState(params, optimizer.init(params), num_updates=jnp.zeros((), jnp.int32))


def prepare(params: Params, extra: Any, batch: Trajectory, key: Array) -> tuple[Trajectory, Summary]:
    """The trajectory as it is: targets are of the parameters that the gradient is of, and share its forward pass."""
    del params, extra, key
    return batch, {}


def loss(
    config: OneStepConfig, net: ActorCritic, targets: TargetsFn, params: Params, batch: Trajectory
) -> tuple[Array, Metrics]:
    """- E[log pi(a|o) advantage] + c_v / 2 E[(V - target)^2] - c_e E[entropy], over the steps that count."""
    parameters, value, _ = net.unroll(params, batch.observation, batch.agent_state, batch.is_first)
    log_prob = net.distribution.log_prob(parameters[:-1], batch.action)
    log_ratio = log_ratio_of(log_prob, batch.extras["behaviour_log_prob"], batch.valid)
    log_ratio, fixed_value = jax.lax.stop_gradient((log_ratio, value))
    found = targets(batch, log_ratio, fixed_value)
    mean = partial(returns.weighted_mean, weight=found.weight)
    advantage = returns.standardise(found.advantage, found.weight) if config.normalise_advantage else found.advantage
    policy = -mean(log_prob * advantage)
    value_error = 0.5 * mean(jnp.square(value[:-1] - found.value))
    entropy = mean(net.distribution.entropy(parameters[:-1]))
    total = policy + config.value_coef * value_error - config.entropy_coef * entropy
    metrics = {
        "loss/total": total,
        "loss/policy": policy,
        "loss/value": value_error,
        "policy/entropy": entropy,
        "policy/approx_kl": mean(approximate_kl(log_ratio)),
        "value/explained_variance": returns.explained_variance(found.value, fixed_value[:-1], found.weight),
    }
    return total, metrics | found.metrics


def gradient(
    config: OneStepConfig, net: ActorCritic, targets: TargetsFn, params: Params, prepared: Trajectory, step: Array
) -> tuple[Params, Metrics]:
    """Gradient of the loss over the whole trajectory."""
    del step
    grads, metrics = jax.grad(partial(loss, config, net, targets), has_aux=True)(params, prepared)
    return grads, metrics | {"gradient/norm": optax.tree.norm(grads)}


def finish(
    schedule: optax.Schedule, state: LearnerState, progress: Progress, summary: Summary, step_metrics: Metrics
) -> tuple[LearnerState, Metrics]:
    """The next learner state, and the metrics of its one gradient step."""
    result = summary | {name: jnp.mean(values) for name, values in step_metrics.items()}
    result["learning_rate"] = jnp.asarray(schedule(state.num_updates), jnp.float32)
    return LearnerState(progress.params, progress.opt_state, state.num_updates + 1), result


def make_optimizer(config: OneStepConfig, schedule: optax.Schedule) -> optax.GradientTransformation:
    """The chosen optimizer behind a clip of the gradient's global norm."""
    if config.optimizer == "adam":
        return clipped_adam(schedule, config.max_grad_norm, config.optimizer_epsilon)
    clip = optax.clip_by_global_norm(config.max_grad_norm)
    step = optax.scale_by_rms(config.rmsprop_decay, config.optimizer_epsilon, config.rmsprop_initial_scale)
    return optax.chain(clip, step, schedules.scale_by_schedule(schedule))
