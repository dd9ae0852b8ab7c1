"""Critics of an observation and a continuous action, several of one shape, stacked; and the loss that they share.

Source of the minimum over several critics: Fujimoto et al. 2018 (arXiv:1802.09477), section 4.2.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from agents.api import Array, Metrics, Observation, Params
from agents.networks.branch import HeadSize
from agents.networks.config import NetworkConfig
from agents.networks.observation_inputs import make_inputs, validate_torso
from agents.networks.vector_branch import make_vector_branch
from agents.ops.n_step import Transitions
from agents.ops.returns import weighted_mean
from agents.ops.td_errors import ensemble_squared_error
from envpool_bridge.spec.specs import EnvSpec


class CriticEnsemble(NamedTuple):
    """E critics bound to an environment's spec.

    Attributes:
        init: Returns parameters [E, ...] each leaf; the key is consumed.
        values: Maps (params, observation [B, ...], action [B, D] in [-1, 1]) to [E, B] float32, reward units;
            [T, B] may replace [B].
    """

    init: Callable[[Array], Params]
    values: Callable[[Params, Observation, Array], Array]


def make_critics(config: NetworkConfig, spec: EnvSpec, num_actions: int, num_critics: int) -> CriticEnsemble:
    """Returns critics with independent weights of the action and every leaf of the observation, `critic_only` ones too.

    The action is one more leaf, see `make_vector_branch`.

    Args:
        config: Network of each critic.
        spec: Environment.
        num_actions: D.
        num_critics: E.

    Raises:
        UserError: If the torso does not fit the observations.
    """
    inputs = make_inputs(spec, config.torso)
    validate_torso(spec, inputs)
    branch = make_vector_branch(config.critic, inputs, "action", num_actions, {"head": HeadSize(1, 1.0)})

    def init(key: Array) -> Params:
        return jax.vmap(branch.init)(jax.random.split(key, num_critics))

    def values(params: Params, observation: Observation, action: Array) -> Array:
        # One batched product for all, not E small ones after another.
        return jax.vmap(lambda member: branch.outputs(member, observation, action)["head"][..., 0])(params)

    return CriticEnsemble(init, values)


def critic_loss(
    critics: CriticEnsemble, params: Params, batch: Transitions, target: Array, importance: Array | None = None
) -> tuple[Array, tuple[Array, Metrics]]:
    """Returns half the mean squared error, summed over critics; the errors [E, N]; and metrics.

    Args:
        critics: The ensemble.
        params: Parameters of the critics; the loss is differentiated by them.
        batch: N transitions, with actions in [-1, 1].
        target: [N] float32, reward units.
        importance: [N] float32 importance weights. None: 1 each.
    """
    value, weight = critics.values(params, batch.observation, batch.action), batch.weight
    importance = jnp.ones_like(target) if importance is None else importance
    loss, error = ensemble_squared_error(value, target, weight, importance)
    return loss, (error, {"loss/critic": loss, "value/mean": weighted_mean(jnp.mean(value, axis=0), weight)})
