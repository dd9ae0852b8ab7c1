"""Policy head: adds standard deviations and masks illegal actions in a network's outputs."""

import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from agents.api import Array, Observation, Params
from agents.networks.config import POLICY_LOG_STD_RANGE, NetworkConfig
from agents.networks.distributions import Distribution, distribution_for, find_mask, leaf_distributions, mask_logits
from agents.networks.state_dependent_noise import feature_log_std, feature_noise, initial_log_std
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, EnvSpec, is_one_leaf
from envpool_bridge.spec.tree import items, lookup, path_name, shown_path

_LEAST_SHARE = 0.01  # of a bounded action that the initial deviation covers


class PolicyHead(NamedTuple):
    """Map from a network's outputs to an action distribution.

    Attributes:
        num_outputs: Number of network outputs: logits of discrete leaves, means of continuous ones, in order. Log standard
            deviations that depend on the state follow the means of their leaf.
        params: Initial parameters of the head: {} or {"log_std": [D]}, by name for a structured action; [F, D] with gSDE.
        parameters: Maps (params, outputs [..., num_outputs], observation) to the distribution's parameters [..., P]. With gSDE the
            F features follow the outputs.
        distribution: Action distribution.
        noise: Maps (params, outputs, seeds [B]) to the standard normal noise [B, D] of gSDE; None without it.
    """

    num_outputs: int
    params: dict[str, Params]
    parameters: Callable[[Params, Array, Observation], Array]
    distribution: Distribution
    noise: Callable[[Params, Array, Array], Array] | None = None


def make_policy_head(config: NetworkConfig, spec: EnvSpec) -> PolicyHead:
    """Returns the head for an environment's actions.

    The standard deviation is a parameter that does not depend on the state (Schulman et al. 2017), or with log_std="state" an
    output.

    Raises:
        UserError: Squashing, gSDE or the action mask does not fit the actions.
    """
    if config.sde_period is not None:
        return _make_sde_head(config, spec)
    actions = list(items(spec.action))
    names = [path_name(path) for path, _ in actions]
    continuous = [isinstance(leaf, ArraySpec) for _, leaf in actions]
    by_state = config.log_std == "state"
    sizes = [
        part.num_parameters // 2 if has_std and not by_state else part.num_parameters
        for part, has_std in zip(leaf_distributions(spec, config.squash), continuous, strict=True)
    ]
    masked, one_leaf = find_mask(spec), is_one_leaf(spec.action)
    log_stds = {
        name: jnp.full((size,), config.initial_log_std)
        for name, size, has_std in zip(names, sizes, continuous, strict=True)
        if has_std and not by_state
    }
    params = {"log_std": log_stds[""] if one_leaf else log_stds} if log_stds else {}

    def parameters(params: Params, outputs: Array, observation: Observation) -> Array:
        pieces: list[Array] = []
        for index, (name, output) in enumerate(zip(names, _split(outputs, sizes), strict=True)):
            if continuous[index] and by_state:
                mean, log_std = jnp.split(output, 2, axis=-1)
                pieces += [mean, jnp.clip(config.initial_log_std + log_std, *POLICY_LOG_STD_RANGE)]
            elif continuous[index]:
                log_std = params["log_std"] if one_leaf else params["log_std"][name]
                pieces += [output, jnp.broadcast_to(log_std, output.shape)]
            elif masked is not None and masked.action == index:
                pieces.append(mask_logits(output, lookup(observation, masked.mask)))
            else:
                pieces.append(output)
        return pieces[0] if len(pieces) == 1 else jnp.concatenate(pieces, -1)

    return PolicyHead(sum(sizes), params, parameters, distribution_for(spec, config.squash))


def _make_sde_head(config: NetworkConfig, spec: EnvSpec) -> PolicyHead:
    if not is_one_leaf(spec.action) or not isinstance(spec.action, ArraySpec):
        raise UserError(
            f"{spec.env_id}: sde_period makes noise of continuous actions: expected one array of floats, got {spec.action}; use "
            f"sde_period None"
        )
    distribution = distribution_for(spec, config.squash)
    size = distribution.num_parameters // 2

    def parameters(params: Params, outputs: Array, observation: Observation) -> Array:
        del observation
        # The torso learns from the mean alone, as in the authors' code for on-policy algorithms.
        features = jax.lax.stop_gradient(outputs[..., size:])
        return jnp.concatenate([outputs[..., :size], feature_log_std(features, params["log_std"])], axis=-1)

    def noise(params: Params, outputs: Array, seeds: Array) -> Array:
        return feature_noise(outputs[..., size:], params["log_std"], seeds)

    return PolicyHead(size, {"log_std": initial_log_std(config, size)}, parameters, distribution, noise)


def describe_narrow_policy(config: NetworkConfig, spec: EnvSpec) -> str | None:
    """Returns a warning if the initial deviation of a Gaussian covers less than a hundredth of its bounds; otherwise None."""
    share = math.exp(config.initial_log_std) / 2.0
    bounded = [
        shown_path("action", path)
        for path, leaf in items(spec.action)
        if isinstance(leaf, ArraySpec) and all(np.isfinite(bound).all() for bound in leaf.limits())
    ]
    if not bounded or share >= _LEAST_SHARE or config.sde_period is not None:
        return None
    return (
        f"the policy hardly explores: network.initial_log_std {config.initial_log_std} is a deviation of {share:.2%} of the bounds "
        f"of {', '.join(bounded)}; its unit is half of them, so that -0.5 is 30 %"
    )


def _split(outputs: Array, sizes: Sequence[int]) -> list[Array]:
    return [outputs[..., end - size : end] for size, end in zip(sizes, accumulate(sizes), strict=True)]
