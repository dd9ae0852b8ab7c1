"""TD3+BC: TD3 whose actor stays near recorded actions. Source: Fujimoto and Gu 2021 (arXiv:2106.06860), equations 3 and 5.

`docs/algorithms/offline.md` has the equations of all offline algorithms.
"""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp

from agents.api import Array, LearnerState, Metrics, Params, ReplayAgent, ReplayConfig, Sample
from agents.binding import keeps_binding
from agents.networks.config import NetworkConfig
from agents.networks.observation_scale import normalized_spec
from agents.ops import validate
from agents.ops.importance_weights import importance_weights
from agents.ops.n_step import Transitions, first_n_step_transitions
from agents.ops.returns import weighted_mean
from agents.td3 import TD3, TD3Config, bind_td3, build_td3, smoothed_targets, update_critic, update_when_due
from agents.transforms.normalized_samples import with_normalized_samples
from envpool_bridge.spec.specs import EnvSpec


@dataclasses.dataclass(frozen=True)
class TD3BCConfig(TD3Config):
    """Hyper-parameters of TD3, and one of TD3+BC.

    Attributes:
        value_weight: alpha: weight of the critic's value, divided by its mean size; the squared distance to recorded actions has
            weight 1. 0 is behavioral cloning.
    """

    replay: ReplayConfig = dataclasses.field(default_factory=ReplayConfig)
    normalize_observations: bool = True
    value_weight: float = 2.5

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.not_negative(self, "value_weight")


@keeps_binding
def make_td3_bc(config: TD3BCConfig, spec: EnvSpec, network: NetworkConfig) -> ReplayAgent:
    """Returns a TD3+BC agent, for continuous actions; raises UserError where configuration, environment and network do not fit."""
    spec = normalized_spec(spec, config.normalize_observations)
    td3 = build_td3(config, spec, network, "td3_bc")
    agent = bind_td3(td3, "td3_bc")._replace(update=partial(update, td3, config.value_weight))
    return with_normalized_samples(agent, spec, config.normalize_observations)


def update(
    td3: TD3, value_weight: float, state: LearnerState, sample: Sample, key: Array
) -> tuple[LearnerState, Metrics, Array]:
    """Returns the state after one gradient step, metrics, and the windows' priorities. `key` is consumed.

    It is TD3's update with another loss of the actor.
    """
    batch = first_n_step_transitions(sample.trajectory, td3.config.discount, td3.config.n_step)
    batch = batch._replace(action=td3.actions.to_unit(batch.action))
    importance = importance_weights(sample.probability, batch.weight, td3.beta(state.num_updates))

    target = smoothed_targets(td3, state.extra, batch, key)
    state, error, metrics = update_critic(td3, state, batch, target, importance)
    state, actor_metrics = update_when_due(td3, state, batch, partial(actor_loss, td3, value_weight, importance))
    return state, metrics | actor_metrics, jnp.mean(jnp.abs(error), axis=0)


def actor_loss(
    td3: TD3, value_weight: float, importance: Array, actor: Params, critic: Params, batch: Transitions
) -> tuple[Array, Metrics]:
    """Returns -alpha E[Q_1(o, mu(o))] / E|Q_1| + E[(mu(o) - a)^2], the denominator without gradient (eq. 5); and metrics.

    The squared distance is the mean over the elements of the action. `importance`, [N], weighs it.
    """
    first = jax.tree.map(lambda leaf: leaf[:1], critic)
    action = td3.actor.action(actor, batch.observation)
    value = td3.critics.values(first, batch.observation, action)[0]
    size = jax.lax.stop_gradient(weighted_mean(jnp.abs(value), batch.weight))
    distance = weighted_mean(importance * jnp.mean(jnp.square(action - batch.action), axis=-1), batch.weight)
    size = jnp.where(size > 0.0, size, 1.0)  # 0 if no window counts
    loss = distance - value_weight * weighted_mean(value, batch.weight) / size
    return loss, {"loss/actor": loss, "policy/distance": distance}
