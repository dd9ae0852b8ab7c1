"""Twin delayed deep deterministic policy gradients. Source: Fujimoto et al. 2018 (arXiv:1802.09477), algorithm 1.

`docs/algorithms/td3.md` lists the equations and what deviates.
"""

import dataclasses
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from agents.api import Array, Metrics, Observation, Params, ReplayAgent
from agents.continuous_control import ActorPart, Bound, make_continuous_agent
from agents.networks.config import NetworkConfig, require_plain_network
from agents.networks.critics import CriticEnsemble, make_critics
from agents.networks.deterministic_actor import DeterministicActor, make_deterministic_actor
from agents.ops import returns
from agents.ops.action_scaling import continuous_actions
from agents.ops.continuous_config import ContinuousConfig
from agents.ops.target_update import polyak
from agents.ops.transitions import Batch
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import EnvSpec


@dataclasses.dataclass(frozen=True)
class TD3Config(ContinuousConfig):
    """Hyper-parameters; defaults of the authors' code. Noise is in units of actions scaled to [-1, 1].

    Attributes:
        num_critics: E; the least of their target values counts.
        exploration_noise: deviation of the Gaussian noise that training adds to actions.
        target_noise: deviation of the noise that smooths targets.
        target_noise_clip: its largest absolute value.
        policy_delay: critic steps to one step of the actor and of all targets.
    """

    num_critics: int = 2
    exploration_noise: float = 0.1
    target_noise: float = 0.2
    target_noise_clip: float = 0.5
    policy_delay: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("exploration_noise", "target_noise", "target_noise_clip"):
            if not getattr(self, name) >= 0.0:
                raise UserError(f"{name} must not be negative: got {getattr(self, name)}")
        if self.policy_delay < 1:
            raise UserError(f"policy_delay must be at least 1: got {self.policy_delay}")


class _TD3(NamedTuple):
    config: TD3Config
    actor: DeterministicActor
    critics: CriticEnsemble
    num_actions: int


def make_td3(config: TD3Config, spec: EnvSpec, network: NetworkConfig) -> ReplayAgent:
    """TD3 for this environment and network. Raises UserError where they do not fit."""
    return make_continuous_agent(bind_td3(config, spec, network))


def bind_td3(config: TD3Config, spec: EnvSpec, network: NetworkConfig, name: str = "td3") -> Bound:
    """The pieces that `make_td3` makes an agent of; `name` is the algorithm's. Raises UserError as it does."""
    require_plain_network(name.upper(), network)
    actions = continuous_actions(spec)
    critics = make_critics(network, spec, actions.size, config.num_critics)
    td3 = _TD3(config, make_deterministic_actor(network, spec, actions.size), critics, actions.size)
    part = ActorPart(
        init=partial(init, td3),
        explore=partial(explore, td3),
        greedy=td3.actor.action,
        next_action=partial(next_action, td3),
        loss=partial(actor_loss, td3),
        follow=partial(follow, td3),
        delay=config.policy_delay,
    )
    return Bound(name, config, part, actions, critics)


def init(td3: _TD3, key: Array) -> tuple[Params, Params]:
    """First parameters, and a copy of them as the target actor. `key` is consumed."""
    actor = td3.actor.init(key)
    return actor, jax.tree.map(jnp.copy, actor)


def explore(td3: _TD3, actor: Params, observation: Observation, keys: Array) -> Array:
    """Actions [B, D] with Gaussian noise, from keys [B], within [-1, 1]."""
    noise = jax.vmap(lambda key: jax.random.normal(key, (td3.num_actions,)))(keys)
    return jnp.clip(td3.actor.action(actor, observation) + td3.config.exploration_noise * noise, -1.0, 1.0)


def next_action(
    td3: _TD3, actor: Params, target_actor: Params, observation: Observation, key: Array
) -> tuple[Array, Array]:
    """The target actor's actions with clipped noise (target policy smoothing, section 5.3); nothing is added."""
    del actor
    action = td3.actor.action(target_actor, observation)
    if td3.config.target_noise > 0.0:
        clip = td3.config.target_noise_clip
        noise = jnp.clip(td3.config.target_noise * jax.random.normal(key, action.shape), -clip, clip)
        action = jnp.clip(action + noise, -1.0, 1.0)
    return action, jnp.zeros(action.shape[0])


def actor_loss(
    td3: _TD3, actor: Params, target_actor: Params, critic: Params, batch: Batch, key: Array
) -> tuple[Array, Metrics]:
    """-E[Q_1(o, mu(o))], differentiated through the action."""
    del target_actor, key
    first = jax.tree.map(lambda leaf: leaf[:1], critic)
    action = td3.actor.action(actor, batch.observation)
    value = td3.critics.values(first, batch.observation, action)[0]
    loss = -returns.weighted_mean(value, batch.weight)
    saturated = returns.weighted_mean(jnp.mean(jnp.abs(action) > 0.99, axis=-1, dtype=jnp.float32), batch.weight)
    return loss, {"loss/actor": loss, "policy/saturated": saturated}


def follow(td3: _TD3, target_actor: Params, actor: Params, metrics: Metrics) -> Params:
    """The target actor, one step behind the actor."""
    del metrics
    return polyak(target_actor, actor, td3.config.target_step_size)
