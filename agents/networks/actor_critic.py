"""Policy and value heads on torsos, as pure functions of parameters."""

from typing import Any, NamedTuple, Protocol

import flax.linen as nn
import jax

from agents.api import Array, Observation, Params
from agents.distributions import Distribution
from agents.networks.config import NetworkConfig
from agents.networks.observation_inputs import ObservationInputs, inputs_of, require_fit
from agents.networks.policy_head import make_policy_head
from agents.networks.torso import apply_torso
from envpool_bridge.errors import UserError
from envpool_bridge.specs import EnvSpec
from envpool_bridge.tree import shown_path


class ApplyFn(Protocol):
    """Something of [..., *observation] observations under `params`."""

    def __call__(self, params: Params, observation: Observation) -> Array: ...


class BothFn(Protocol):
    """Policy parameters [..., P] and values [...] of [..., *observation] observations."""

    def __call__(self, params: Params, observation: Observation) -> tuple[Array, Array]: ...


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
    images: tuple[str, ...]

    @nn.compact
    def __call__(self, inputs: Any) -> Array:
        features = apply_torso(self.config, self.images, inputs)
        return _Linear(self.num_outputs, self.gain, name="head")(features)


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
    images: tuple[str, ...]

    @nn.compact
    def __call__(self, inputs: Any) -> tuple[Array, Array]:
        features = apply_torso(self.config, self.images, inputs)
        return _Linear(self.num_outputs, 0.01, name="policy")(features), _Linear(1, 1.0, name="value")(features)


def make_actor_critic(config: NetworkConfig, spec: EnvSpec) -> ActorCritic:
    """A network for this environment. Heads start small (gain 0.01) for the policy, 1 for the value.

    An observation with structure keeps it: weights that a leaf meets first are stored under the leaf's name. The action mask
    is no input, and what is `critic_only` none of the policy's.

    Source of the initialisation: Andrychowicz et al. 2021 (arXiv:2006.05990), section 3.2.

    Raises:
        UserError: the torso does not fit the observations, squashing or the mask does not fit the actions, or one torso is
            shared by a policy and a value that see different leaves.
    """
    critic_inputs = inputs_of(spec, config.torso)
    actor_inputs = inputs_of(spec, config.torso, without=spec.critic_only)
    require_fit(spec, critic_inputs)
    if config.shares_torso and actor_inputs != critic_inputs:
        name = shown_path("observation", spec.critic_only)
        raise UserError(f"{spec.env_id}: only the value may see {name}: give it its own torso (shared_torso=False)")
    head = make_policy_head(config, spec)
    build = _shared_torso if config.shares_torso else _torsos_apart
    init, policy_outputs, value = build(config, actor_inputs, critic_inputs, head.num_outputs)

    def policy(params: Params, observation: Observation) -> Array:
        return head.parameters(params, policy_outputs(params, observation), observation)

    def both(params: Params, observation: Observation) -> tuple[Array, Array]:
        # A shared torso stands in both calls; the compiler computes it once.
        return policy(params, observation), value(params, observation)

    return ActorCritic(lambda key: {**init(key), **head.params}, policy, value, both, head.distribution)


def _torsos_apart(
    config: NetworkConfig, actor_inputs: ObservationInputs, critic_inputs: ObservationInputs, num_outputs: int
) -> tuple[NetworkInitFn, ApplyFn, ApplyFn]:
    actor = _Head(config, num_outputs, 0.01, actor_inputs.images)
    critic = _Head(config, 1, 1.0, critic_inputs.images)

    def init(key: Array) -> Params:
        actor_key, critic_key = jax.random.split(key)
        return {
            "actor": actor.init(actor_key, actor_inputs.zeros()),
            "critic": critic.init(critic_key, critic_inputs.zeros()),
        }

    def policy(params: Params, observation: Observation) -> Array:
        return _apply(actor, actor_inputs, params["actor"], observation)

    def value(params: Params, observation: Observation) -> Array:
        return _apply(critic, critic_inputs, params["critic"], observation)[..., 0]

    return init, policy, value


def _shared_torso(
    config: NetworkConfig, inputs: ObservationInputs, _: ObservationInputs, num_outputs: int
) -> tuple[NetworkInitFn, ApplyFn, ApplyFn]:
    shared = _Shared(config, num_outputs, inputs.images)

    def init(key: Array) -> Params:
        return {"shared": shared.init(key, inputs.zeros())}

    def policy(params: Params, observation: Observation) -> Array:
        return _apply(shared, inputs, params["shared"], observation)[0]

    def value(params: Params, observation: Observation) -> Array:
        return _apply(shared, inputs, params["shared"], observation)[1][..., 0]

    return init, policy, value


def _apply(module: nn.Module, inputs: ObservationInputs, params: Params, observation: Observation) -> Any:
    """Applies a module to observations [B, ...] or [T, B, ...]."""
    return inputs.restore(observation, module.apply(params, inputs.encode(observation)))
