"""Advantage actor-critic: one gradient step on the advantages of each trajectory. A3C where replicas push at their own pace.

Source: Mnih et al. 2016 (arXiv:1602.01783), section 4 and algorithm S3. `docs/algorithms/a2c.md` lists what deviates.
"""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import optax

from agents.api import Agent, Array, LearnerState, Metrics, Params, Trajectory
from agents.networks.actor_critic import ActorCritic
from agents.networks.config import NetworkConfig
from agents.networks.custom import bound_network
from agents.ops import returns, validate
from agents.ops.gradient_steps import single_gradient_step
from agents.ops.optimizers import OptimizerName, clipped_adam, clipped_rmsprop
from agents.ops.policy_gradient import actor_critic_loss, approximate_kl, counted_log_ratio
from agents.ops.schedules import Kind, make_schedule
from agents.transforms.normalization import NormalizationConfig
from agents.transforms.on_policy_agent import make_on_policy_agent
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import EnvSpec


@dataclasses.dataclass(frozen=True)
class A2CConfig:
    """Hyper-parameters; defaults of the usual code (OpenAI Baselines) where the paper drew them at random.

    Attributes:
        learning_rate: Initial learning rate of the optimizer.
        learning_rate_schedule: "constant", or "linear" to 0 after `total_updates`.
        total_updates: Updates of the whole run, for the schedule.
        discount: g.
        value_coef: Weight of the value error.
        entropy_coef: Weight of the entropy bonus.
        max_grad_norm: Gradients are scaled down to this global norm.
        normalize_advantage: Whether advantages are standardized over the steps that count.
        optimizer: "rmsprop" (no momentum) or "adam".
        optimizer_epsilon: Under the root for "rmsprop", as in TensorFlow; added to the root for "adam".
        rmsprop_decay: Decay of the running mean of squared gradients.
        rmsprop_initial_scale: Initial value of that mean; see `agents.ops.optimizers.clipped_rmsprop`.
        normalization: Observations and rewards by running statistics; off by default.
        gae_lambda: lambda of GAE; 1 takes all rewards of the trajectory, as the paper does, 0 is the one-step actor-critic.
    """

    learning_rate: float = 7e-4
    learning_rate_schedule: Kind = "constant"
    total_updates: int = 0
    discount: float = 0.99
    value_coef: float = 0.5
    entropy_coef: float = 0.01
    max_grad_norm: float = 0.5
    normalize_advantage: bool = False
    optimizer: OptimizerName = "rmsprop"
    optimizer_epsilon: float = 1e-5
    rmsprop_decay: float = 0.99
    rmsprop_initial_scale: float = 1.0
    normalization: NormalizationConfig = dataclasses.field(default_factory=NormalizationConfig)
    gae_lambda: float = 1.0

    def __post_init__(self) -> None:
        validate.positive(self, "learning_rate", "max_grad_norm", "optimizer_epsilon")
        validate.not_negative(self, "value_coef", "entropy_coef", "rmsprop_initial_scale")
        validate.fraction(self, "discount", "gae_lambda")
        if not 0.0 <= self.rmsprop_decay < 1.0:
            raise UserError(f"rmsprop_decay must lie in [0, 1): got {self.rmsprop_decay}")
        if self.optimizer not in ("rmsprop", "adam"):
            raise UserError(f"optimizer must be 'rmsprop' or 'adam': got {self.optimizer!r}")


def make_a2c(config: A2CConfig, spec: EnvSpec, network: NetworkConfig | ActorCritic) -> Agent:
    """Returns A2C for this environment and network.

    Raises:
        UserError: Environment and network do not fit.
    """
    net = bound_network(network, spec)
    rate = make_schedule(config.learning_rate_schedule, config.learning_rate, config.total_updates)
    optimizer = make_optimizer(config, rate)
    init_fn, update_fn = partial(init, net, optimizer), partial(update, config, net, optimizer, rate)
    steps = single_gradient_step(partial(loss, config, net), optimizer, rate)
    return make_on_policy_agent("a2c", config, spec, net, init_fn, update_fn, steps)


def make_optimizer(config: A2CConfig, rate: optax.Schedule) -> optax.GradientTransformationExtraArgs:
    """Returns the configured optimizer after a clip of the gradient's global norm."""
    if config.optimizer == "adam":
        return clipped_adam(rate, config.max_grad_norm, config.optimizer_epsilon)
    return clipped_rmsprop(
        rate, config.max_grad_norm, config.optimizer_epsilon, config.rmsprop_decay, config.rmsprop_initial_scale
    )


def init(net: ActorCritic, optimizer: optax.GradientTransformationExtraArgs, key: Array) -> LearnerState:
    """Returns the first learner state. `key` is consumed."""
    params = net.init(key)
    return LearnerState(params, optimizer.init(params), jnp.zeros((), jnp.int32))


def update(
    config: A2CConfig,
    net: ActorCritic,
    optimizer: optax.GradientTransformationExtraArgs,
    rate: optax.Schedule,
    state: LearnerState,
    trajectory: Trajectory,
    key: Array,
) -> tuple[LearnerState, Metrics]:
    """Returns the state after one gradient step on a trajectory, and metrics."""
    del key
    grads, metrics = jax.grad(partial(loss, config, net), has_aux=True)(state.params, trajectory)
    metrics |= {
        "gradient/norm": optax.tree.norm(grads),
        "learning_rate": jnp.asarray(rate(state.num_updates), jnp.float32),
    }
    updates, opt_state = optimizer.update(grads, state.opt_state, state.params, num_updates=state.num_updates)
    return LearnerState(optax.apply_updates(state.params, updates), opt_state, state.num_updates + 1), metrics


def loss(config: A2CConfig, net: ActorCritic, params: Params, trajectory: Trajectory) -> tuple[Array, Metrics]:
    """Returns policy + value error - entropy bonus on advantages of GAE, and metrics. The probability ratio is taken to be 1."""
    parameters, value, _ = net.unroll(params, trajectory.observation, trajectory.agent_state, trajectory.is_first)
    parameters = parameters[:-1]
    log_prob, entropy = net.distribution.log_prob(parameters, trajectory.action), net.distribution.entropy(parameters)
    log_ratio = counted_log_ratio(log_prob, trajectory.extras["behavior_log_prob"], trajectory.valid)
    log_ratio, fixed_value = jax.lax.stop_gradient((log_ratio, value))
    ends = (trajectory.terminated, trajectory.truncated, trajectory.valid)
    advantage = returns.gae(trajectory.reward, fixed_value, *ends, discount=config.discount, lambda_=config.gae_lambda)
    target, weight = advantage + fixed_value[:-1], trajectory.valid.astype(value.dtype)
    if config.normalize_advantage:
        advantage = returns.standardize(advantage, weight)
    coefficients = {"value_coef": config.value_coef, "entropy_coef": config.entropy_coef}
    total, metrics = actor_critic_loss(log_prob, entropy, value[:-1], advantage, target, weight, **coefficients)
    metrics["policy/approx_kl"] = returns.weighted_mean(approximate_kl(log_ratio), weight)
    return total, metrics
