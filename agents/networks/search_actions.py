"""Actions among which each node of a search chooses: all of them, or a few that the policy proposes.

Source of the proposals: Hubert et al. 2021 (arXiv:2104.06303, Sampled MuZero), section 3; the flatter part is that of Wang et al.
2024 (arXiv:2403.00564, EfficientZero V2), appendix.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from agents.api import Action, Array, Observation, Trajectory
from agents.networks.distributions import distribution_for, make_legal
from agents.ops.action_scaling import continuous_actions
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec, MultiDiscreteSpec, is_one_leaf

Choices = Any
"""Actions of N nodes, [N, A, ...]; () where they are always the numbers 0 to A - 1."""
_FLATTER = 3.0  # factor of the standard deviation of the flatter proposals
_FLATTER_SHARE = 0.75
_MEAN_LIMIT = 3.0
_LOG_STD_RANGE = (-3.0, 1.0)


class SearchActions(NamedTuple):
    """Bound to an environment's spec. A is the number of choices of a node, F the number of features of an action.

    Attributes:
        num_choices: A.
        num_parameters: P, outputs of the policy head.
        num_features: F.
        propose: Maps (parameters [N, P], keys [N]) to choices and the logits [N, A] of the prior policy among them.
        take: Maps (choices, index [N] int32) to actions [N, ...].
        features: Maps actions [..., *leaf] to [..., F] float32.
        uniform: Maps (key, shape) to uniformly random actions [*shape, *leaf]; the key is consumed.
        log_probs: Maps (parameters [..., P], choices [..., A, ...]) to log-probabilities or log-densities [..., A].
        legal: Maps an observation to [..., A], 0 where a choice is illegal; None if all are always legal.
        extras: Specs of the choices that `act` records.
    """

    num_choices: int
    num_parameters: int
    num_features: int
    propose: Callable[[Array, Array], tuple[Choices, Array]]
    take: Callable[[Choices, Array], Action]
    features: Callable[[Action], Array]
    uniform: Callable[[Array, tuple[int, ...]], Action]
    log_probs: Callable[[Array, Choices], Array]
    legal: Callable[[Observation], Array | None]
    extras: Mapping[str, ArraySpec]


def make_search_actions(spec: EnvSpec, num_proposals: int) -> SearchActions:
    """Returns all actions of one Discrete leaf, otherwise `num_proposals` that the policy proposes at each node.

    Raises:
        UserError: If the action has several leaves, a continuous one is unbounded, or one of several numbers has a mask.
    """
    if not is_one_leaf(spec.action):
        raise UserError(f"{spec.env_id}: MuZero needs an action of one array: got {spec.action}; use PPO for several")
    return _all_actions(spec) if isinstance(spec.action, DiscreteSpec) else _proposed_actions(spec, num_proposals)


def _all_actions(spec: EnvSpec) -> SearchActions:
    assert isinstance(spec.action, DiscreteSpec)
    size = spec.action.num_values
    return SearchActions(
        num_choices=size,
        num_parameters=size,
        num_features=size,
        propose=lambda parameters, keys: ((), parameters),
        take=lambda choices, index: index,
        features=lambda action: jax.nn.one_hot(action, size),
        uniform=lambda key, shape: jax.random.randint(key, shape, 0, size, spec.action.dtype),
        log_probs=lambda parameters, choices: jax.nn.log_softmax(parameters),
        legal=make_legal(spec),
        extras={},
    )


def _proposed_actions(spec: EnvSpec, count: int) -> SearchActions:
    """Draws the choices of discrete elements from the policy, those of continuous ones also from a flatter Gaussian."""
    leaf: Any = spec.action
    if spec.action_mask:
        raise UserError(
            f"{spec.env_id}: sampled actions of MuZero have no mask: expected an environment in which every action of "
            f"{leaf} is legal; use PPO, or one discrete action"
        )
    policy, is_continuous = distribution_for(spec, squash=True), isinstance(leaf, ArraySpec)
    num_flatter = int(_FLATTER_SHARE * count) if is_continuous else 0
    features, num_features, uniform = _unit_features(spec) if is_continuous else _one_hot_features(leaf)

    def repeat(parameters: Array) -> Array:
        bounded = _bound(parameters) if is_continuous else parameters
        return jnp.broadcast_to(bounded[..., None, :], (*bounded.shape[:-1], count, bounded.shape[-1]))

    def log_probs(parameters: Array, choices: Choices) -> Array:
        return policy.log_prob(repeat(parameters), choices["search_actions"])

    def propose(parameters: Array, keys: Array) -> tuple[Choices, Array]:
        prior = proposal = repeat(parameters)
        flatter = _flatten(prior) if is_continuous else prior
        proposal = jnp.where((jnp.arange(count) < num_flatter)[:, None], flatter, prior)
        drawn = jax.vmap(policy.sample)(proposal, jax.vmap(lambda key: jax.random.split(key, count))(keys))
        density = policy.log_prob(prior, drawn)
        if num_flatter == 0:
            return {"search_actions": drawn}, jnp.zeros_like(density)  # drawn from the prior: 1 / A each
        share = num_flatter / count
        mixture = jnp.logaddexp(density + math.log1p(-share), policy.log_prob(flatter, drawn) + math.log(share))
        return {"search_actions": drawn}, density - mixture

    return SearchActions(
        num_choices=count,
        num_parameters=policy.num_parameters,
        num_features=num_features,
        propose=propose,
        take=lambda choices, index: jax.vmap(lambda row, number: row[number])(choices["search_actions"], index),
        features=features,
        uniform=uniform,
        log_probs=log_probs,
        legal=lambda observation: None,
        extras={"search_actions": ArraySpec((count, *leaf.shape), leaf.dtype)},
    )


def _bound(parameters: Array) -> Array:
    """Returns parameters of a Gaussian whose actions after tanh keep some distance from their bounds, so that it can move back."""
    mean, log_std = jnp.split(parameters, 2, axis=-1)
    return jnp.concatenate([_MEAN_LIMIT * jnp.tanh(mean / _MEAN_LIMIT), jnp.clip(log_std, *_LOG_STD_RANGE)], axis=-1)


def _flatten(parameters: Array) -> Array:
    mean, log_std = jnp.split(parameters, 2, axis=-1)
    return jnp.concatenate([mean, log_std + math.log(_FLATTER)], axis=-1)


def _unit_features(spec: EnvSpec) -> tuple[Callable[[Action], Array], int, Callable[..., Action]]:
    actions = continuous_actions(spec)

    def uniform(key: Array, shape: tuple[int, ...]) -> Action:
        return actions.from_unit(jax.random.uniform(key, (*shape, actions.size), minval=-1.0))

    return actions.to_unit, actions.size, uniform


def _one_hot_features(leaf: MultiDiscreteSpec) -> tuple[Callable[[Action], Array], int, Callable[..., Action]]:
    sizes = leaf.num_values

    def features(action: Action) -> Array:
        flat = action.reshape((*action.shape[: action.ndim - len(leaf.shape)], len(sizes)))
        return jnp.concatenate([jax.nn.one_hot(flat[..., i], size) for i, size in enumerate(sizes)], axis=-1)

    def uniform(key: Array, shape: tuple[int, ...]) -> Action:
        return jax.random.randint(key, (*shape, *leaf.shape), 0, jnp.reshape(jnp.array(sizes), leaf.shape), leaf.dtype)

    return features, sum(sizes), uniform


def absorbing_actions(actions: SearchActions, window: Trajectory, acted: Array, key: Array) -> Trajectory:
    """Returns windows of the K + 1 first steps' actions, random where `acted` [K+1, N] is 0: a terminal state absorbs all.

    Args:
        actions: Actions of the environment.
        window: N windows.
        acted: 1 where an action was chosen.
        key: Consumed.
    """
    random = actions.uniform(key, acted.shape)
    taken = acted.reshape(acted.shape + (1,) * (random.ndim - 2)) > 0
    return dataclasses.replace(window, action=jnp.where(taken, window.action[: acted.shape[0]], random))
