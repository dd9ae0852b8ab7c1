"""Policy and value heads on torsos, as pure functions of parameters."""

from typing import Any, NamedTuple, Protocol

import flax.linen as nn
import jax
import jax.numpy as jnp

from agents.api import Array, Params
from agents.distributions import Distribution, distribution_for
from agents.networks.config import NetworkConfig
from agents.networks.impala_resnet import ImpalaResNet
from agents.networks.mlp import MLP
from agents.networks.nature_cnn import NatureCNN
from envpool_bridge.errors import UserError
from envpool_bridge.specs import ArraySpec, DiscreteSpec, EnvSpec


class ApplyFn(Protocol):
    """Something of [..., *observation] observations under `params`."""

    def __call__(self, params: Params, observation: Array) -> Array: ...


class BothFn(Protocol):
    """Policy parameters [..., P] and values [...] of [..., *observation] observations."""

    def __call__(self, params: Params, observation: Array) -> tuple[Array, Array]: ...


class NetworkInitFn(Protocol):
    """Parameters; `key` is consumed."""

    def __call__(self, key: Array) -> Params: ...


class ActorCritic(NamedTuple):
    """A network bound to an environment's spec.

    Attributes:
        init: makes parameters.
        policy: the action distribution's parameters [..., P], without computing values where torsos are apart.
        value: [...], without computing the policy where torsos are apart.
        both: (policy, value) together.
        distribution: over actions, of the policy's parameters.
    """

    init: NetworkInitFn
    policy: ApplyFn
    value: ApplyFn
    both: BothFn
    distribution: Distribution


class _Head(nn.Module):
    """Torso and one linear layer of `num_outputs`; `gain` scales its orthogonal weights."""

    config: NetworkConfig
    num_outputs: int
    gain: float

    @nn.compact
    def __call__(self, observation: Array) -> Array:
        return _Linear(self.num_outputs, self.gain, name="head")(_torso(self.config, observation))


class _Linear(nn.Module):
    num_outputs: int
    gain: float

    @nn.compact
    def __call__(self, x: Array) -> Array:
        return nn.Dense(self.num_outputs, kernel_init=nn.initializers.orthogonal(self.gain))(x)


class _Shared(nn.Module):
    """One torso with a policy head and a value head."""

    config: NetworkConfig
    num_outputs: int

    @nn.compact
    def __call__(self, observation: Array) -> tuple[Array, Array]:
        features = _torso(self.config, observation)
        return _Linear(self.num_outputs, 0.01, name="policy")(features), _Linear(1, 1.0, name="value")(features)


def make_actor_critic(config: NetworkConfig, spec: EnvSpec) -> ActorCritic:
    """A network for this environment. Heads start small (gain 0.01) for the policy, 1 for the value.

    Source of the initialisation: Andrychowicz et al. 2021 (arXiv:2006.05990), section 3.2.

    Raises:
        UserError: the torso does not fit the observations, or squashing does not fit the actions.
    """
    _require_fit(config, spec)
    distribution = distribution_for(spec, config.squash)
    continuous = not isinstance(spec.action, DiscreteSpec)
    outputs = distribution.num_parameters // 2 if continuous else distribution.num_parameters
    extra = {"log_std": jnp.full((outputs,), config.initial_log_std)} if continuous else {}

    def with_std(params: Params, mean: Array) -> Array:
        # The standard deviation is a parameter of its own, the same in every state (Schulman et al. 2017).
        return jnp.concatenate([mean, jnp.broadcast_to(params["log_std"], mean.shape)], -1) if continuous else mean

    build = _shared_torso if config.shares_torso else _torsos_apart
    init, policy_mean, value = build(config, spec, outputs)

    def policy(params: Params, observation: Array) -> Array:
        return with_std(params, policy_mean(params, observation))

    def both(params: Params, observation: Array) -> tuple[Array, Array]:
        # A shared torso stands in both calls; the compiler computes it once.
        return policy(params, observation), value(params, observation)

    return ActorCritic(lambda key: {**init(key), **extra}, policy, value, both, distribution)


def _torsos_apart(config: NetworkConfig, spec: EnvSpec, outputs: int) -> tuple[NetworkInitFn, ApplyFn, ApplyFn]:
    actor, critic = _Head(config, outputs, 0.01), _Head(config, 1, 1.0)

    def init(key: Array) -> Params:
        actor_key, critic_key = jax.random.split(key)
        dummy = _encode(config, spec, jnp.zeros((1, *spec.observation.shape), spec.observation.dtype))
        return {"actor": actor.init(actor_key, dummy), "critic": critic.init(critic_key, dummy)}

    def policy(params: Params, observation: Array) -> Array:
        return _apply(actor, config, spec, params["actor"], observation)

    def value(params: Params, observation: Array) -> Array:
        return _apply(critic, config, spec, params["critic"], observation)[..., 0]

    return init, policy, value


def _shared_torso(config: NetworkConfig, spec: EnvSpec, outputs: int) -> tuple[NetworkInitFn, ApplyFn, ApplyFn]:
    shared = _Shared(config, outputs)

    def init(key: Array) -> Params:
        dummy = _encode(config, spec, jnp.zeros((1, *spec.observation.shape), spec.observation.dtype))
        return {"shared": shared.init(key, dummy)}

    def policy(params: Params, observation: Array) -> Array:
        return _apply(shared, config, spec, params["shared"], observation)[0]

    def value(params: Params, observation: Array) -> Array:
        return _apply(shared, config, spec, params["shared"], observation)[1][..., 0]

    return init, policy, value


def _encode(config: NetworkConfig, spec: EnvSpec, observation: Array) -> Array:
    """Observations [..., *observation] as the torso wants them."""
    if isinstance(spec.observation, DiscreteSpec):
        return jax.nn.one_hot(observation, spec.observation.num_values)
    if config.torso == "mlp":
        lead = observation.shape[: observation.ndim - len(spec.observation.shape)]
        return observation.reshape((*lead, -1)).astype(jnp.float32)
    return observation


def _apply(module: nn.Module, config: NetworkConfig, spec: EnvSpec, params: Params, observation: Array) -> Any:
    """Applies a module to [B, ...] or [T, B, ...]; image torsos want one batch axis."""
    if config.torso == "mlp" or observation.ndim == len(spec.observation.shape) + 1:
        return module.apply(params, _encode(config, spec, observation))
    # Rows first: merging axes whose *major* one is sharded keeps the shards, the other order would gather.
    steps, rows = observation.shape[:2]
    flat = jnp.swapaxes(observation, 0, 1).reshape((rows * steps, *observation.shape[2:]))
    outputs = module.apply(params, _encode(config, spec, flat))
    return jax.tree.map(lambda y: jnp.swapaxes(y.reshape((rows, steps, y.shape[-1])), 0, 1), outputs)


def _torso(config: NetworkConfig, x: Array) -> Array:
    modules = {"mlp": MLP, "nature_cnn": NatureCNN, "impala_resnet": ImpalaResNet}
    return modules[config.torso](config.hidden_sizes, config.activation, name="torso")(x)


def _require_fit(config: NetworkConfig, spec: EnvSpec) -> None:
    observation = spec.observation
    is_image = isinstance(observation, ArraySpec) and len(observation.shape) == 3
    if config.torso != "mlp" and not is_image:
        raise UserError(
            f"{spec.env_id}: the {config.torso} torso needs images of rank 3, got observations of shape "
            f"{observation.shape}; use torso 'mlp'"
        )
    if config.torso == "nature_cnn" and sorted(observation.shape)[1] < 36:
        raise UserError(
            f"{spec.env_id}: the nature_cnn torso needs images of at least 36 x 36 pixels, got {observation.shape}; "
            f"use torso 'impala_resnet'"
        )
