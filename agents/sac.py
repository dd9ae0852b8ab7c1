"""Soft actor-critic. Source: Haarnoja et al. 2018 (arXiv:1812.05905), "Soft Actor-Critic Algorithms and Applications".

`docs/algorithms/sac.md` lists the equations and what deviates.
"""

import dataclasses
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from agents.api import Array, Metrics, Observation, Params, ReplayAgent
from agents.continuous_control import ActorPart, Bound, make_continuous_agent
from agents.networks.config import NetworkConfig, require_plain_network
from agents.networks.critics import CriticEnsemble, make_critics
from agents.networks.squashed_actor import SquashedActor, make_squashed_actor, squash
from agents.ops import returns
from agents.ops.action_scaling import continuous_actions
from agents.ops.continuous_config import ContinuousConfig
from agents.ops.transitions import Batch
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import EnvSpec

_ENTROPY = "policy/entropy"


@dataclasses.dataclass(frozen=True)
class SACConfig(ContinuousConfig):
    """Hyper-parameters; defaults of the paper, table 1.

    Attributes:
        num_critics: E; the least of their target values counts.
        initial_temperature: alpha at the start, reward units per nat.
        learn_temperature: whether alpha changes so that the entropy comes to `target_entropy`; else it stays.
        target_entropy: nats, of actions scaled to [-1, 1] (at most D log 2); None: -D for D action elements.
        temperature_learning_rate: Adam's, of log alpha.
    """

    num_critics: int = 2
    initial_temperature: float = 1.0
    learn_temperature: bool = True
    target_entropy: float | None = None
    temperature_learning_rate: float = 3e-4

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("initial_temperature", "temperature_learning_rate"):
            if not getattr(self, name) > 0.0:
                raise UserError(f"{name} must be positive: got {getattr(self, name)}")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Temperature:
    """Alpha, and the optimizer that moves it.

    Attributes:
        log_value: float32 scalar, log alpha.
        opt_state: of the optimizer.
    """

    log_value: Array
    opt_state: optax.OptState


class _SAC(NamedTuple):
    config: SACConfig
    actor: SquashedActor
    critics: CriticEnsemble
    num_actions: int


def make_sac(config: SACConfig, spec: EnvSpec, network: NetworkConfig) -> ReplayAgent:
    """SAC for this environment and network. Raises UserError where they do not fit."""
    return make_continuous_agent(bind_sac(config, spec, network))


def bind_sac(config: SACConfig, spec: EnvSpec, network: NetworkConfig) -> Bound:
    """The pieces that `make_sac` makes an agent of. Raises UserError as it does."""
    require_plain_network("SAC", network)
    actions = continuous_actions(spec)
    highest = actions.size * float(jnp.log(2.0))
    if config.target_entropy is not None and config.target_entropy >= highest:
        raise UserError(
            f"{spec.env_id}: target_entropy must be below {highest:.3f}, the entropy of uniform actions: got "
            f"{config.target_entropy}; None stands for {-actions.size}"
        )
    critics = make_critics(network, spec, actions.size, config.num_critics)
    sac = _SAC(config, make_squashed_actor(network, spec, actions.size), critics, actions.size)
    part = ActorPart(
        init=partial(init, sac),
        explore=partial(explore, sac),
        greedy=partial(greedy, sac),
        next_action=partial(next_action, sac),
        loss=partial(actor_loss, sac),
        follow=partial(temperature_step, sac),
    )
    return Bound("sac", config, part, actions, critics)


def init(sac: _SAC, key: Array) -> tuple[Params, Temperature]:
    """First parameters and temperature. `key` is consumed."""
    log_value = jnp.log(jnp.float32(sac.config.initial_temperature))
    return sac.actor.init(key), Temperature(log_value, _optimizer(sac.config).init(log_value))


def explore(sac: _SAC, actor: Params, observation: Observation, keys: Array) -> Array:
    """Actions [B, D] drawn from the policy, with keys [B]."""
    noise = jax.vmap(lambda key: jax.random.normal(key, (sac.num_actions,)))(keys)
    action, _ = squash(sac.actor.parameters(actor, observation), noise)
    return action


def greedy(sac: _SAC, actor: Params, observation: Observation) -> Array:
    """Actions [B, D] of the Gaussian's mean."""
    return jnp.tanh(sac.actor.parameters(actor, observation).mean)


def next_action(
    sac: _SAC, actor: Params, temperature: Temperature, observation: Observation, key: Array
) -> tuple[Array, Array]:
    """Actions of the newest policy, and -alpha log pi: the entropy's share of the soft value (eq. 3)."""
    action, log_prob = _drawn(sac, actor, observation, key)
    return action, -jnp.exp(temperature.log_value) * log_prob


def actor_loss(
    sac: _SAC, actor: Params, temperature: Temperature, critic: Params, batch: Batch, key: Array
) -> tuple[Array, Metrics]:
    """E[alpha log pi(a|o) - min Q(o, a)] with a = tanh(mean + std * noise), differentiated through a (eq. 9)."""
    action, log_prob = _drawn(sac, actor, batch.observation, key)
    value = jnp.min(sac.critics.values(critic, batch.observation, action), axis=0)
    alpha = jnp.exp(temperature.log_value)
    loss = returns.weighted_mean(alpha * log_prob - value, batch.weight)
    entropy = -returns.weighted_mean(log_prob, batch.weight)
    metrics = {
        "loss/actor": loss,
        "loss/temperature": alpha * (entropy - _target_entropy(sac)),
        "policy/temperature": alpha,
        _ENTROPY: entropy,
    }
    return loss, metrics


def temperature_step(sac: _SAC, temperature: Temperature, actor: Params, metrics: Metrics) -> Temperature:
    """One step on J(alpha) = alpha (entropy - target) by log alpha (eq. 18): too little entropy raises alpha."""
    del actor
    if not sac.config.learn_temperature:
        return temperature
    gradient = jnp.exp(temperature.log_value) * (metrics[_ENTROPY] - _target_entropy(sac))
    step, opt_state = _optimizer(sac.config).update(gradient, temperature.opt_state)
    return Temperature(optax.apply_updates(temperature.log_value, step), opt_state)  # pyright: ignore[reportArgumentType]


def _drawn(sac: _SAC, actor: Params, observation: Observation, key: Array) -> tuple[Array, Array]:
    """Actions [N, D] and their log-densities [N]."""
    gaussian = sac.actor.parameters(actor, observation)
    return squash(gaussian, jax.random.normal(key, gaussian.mean.shape))


def _target_entropy(sac: _SAC) -> float:
    target = sac.config.target_entropy
    return -float(sac.num_actions) if target is None else target


def _optimizer(config: SACConfig) -> optax.GradientTransformation:
    return optax.adam(config.temperature_learning_rate)
