"""ReBRAC: TD3+BC whose critics also see the distance to recorded actions. Source: Tarasov et al. 2023 (arXiv:2305.09836), eq. 4-5.

`docs/algorithms/offline.md` has the equations of all offline algorithms.
"""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp

from agents.api import (
    Array,
    LearnerState,
    Metrics,
    Params,
    ReplayAgent,
    ReplayConfig,
    Sample,
    Trajectory,
)
from agents.binding import keeps_binding
from agents.networks.config import NetworkConfig
from agents.networks.critics import make_critics
from agents.networks.observation_scale import normalized_spec
from agents.ops import validate
from agents.ops.importance_weights import importance_weights
from agents.ops.n_step import Transitions, first_transitions, n_step_rewards, take_steps
from agents.ops.returns import weighted_mean
from agents.td3 import TD3, TD3Config, TD3Extra, bind_td3, build_td3, smoothed_actions, update_critic, update_when_due
from agents.transforms.normalized_samples import with_normalized_samples
from envpool_bridge.spec.specs import EnvSpec


@dataclasses.dataclass(frozen=True)
class ReBRACConfig(TD3Config):
    """Hyper-parameters of TD3, and those of ReBRAC; the paper chooses both penalties for each task.

    Attributes:
        actor_penalty: beta_1: weight of the squared distance to recorded actions in the actor's loss.
        critic_penalty: beta_2: weight of the squared distance to the next recorded action in the critics' targets.
        critic_layer_norm: Normalize the layers of the critics; `network.layer_norm` decides for the actor.
    """

    replay: ReplayConfig = dataclasses.field(default_factory=ReplayConfig)
    actor_learning_rate: float = 1e-3
    critic_learning_rate: float = 1e-3
    actor_penalty: float = 0.01
    critic_penalty: float = 0.01
    critic_layer_norm: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.not_negative(self, "actor_penalty", "critic_penalty")


@keeps_binding
def make_rebrac(config: ReBRACConfig, spec: EnvSpec, network: NetworkConfig) -> ReplayAgent:
    """Returns a ReBRAC agent, for continuous actions; raises UserError where configuration, environment and network do not fit."""
    spec = normalized_spec(spec, config.normalize_observations)
    td3 = build_rebrac(config, spec, network)
    agent = bind_td3(td3, "rebrac")
    # One step more than the returns need: its action is the recorded one after them.
    data = dataclasses.replace(agent.data, sequence_length=config.n_step + 1)
    agent = agent._replace(update=partial(update, td3, config), data=data)
    return with_normalized_samples(agent, spec, config.normalize_observations)


def build_rebrac(config: ReBRACConfig, spec: EnvSpec, network: NetworkConfig) -> TD3:
    """Returns TD3 with the critics of ReBRAC; raises UserError as `make_rebrac` does."""
    td3 = build_td3(config, spec, network, "rebrac")
    normalized = dataclasses.replace(network, layer_norm=config.critic_layer_norm)
    return td3._replace(critics=make_critics(normalized, spec, td3.actions.size, config.num_critics))


def update(
    td3: TD3, config: ReBRACConfig, state: LearnerState, sample: Sample, key: Array
) -> tuple[LearnerState, Metrics, Array]:
    """Returns the state after one gradient step, metrics, and the windows' priorities. `key` is consumed.

    It is TD3's update with a penalty in the targets and in the loss of the actor.
    """
    window = sample.trajectory
    ends = (window.terminated, window.truncated, window.valid)
    rewards = n_step_rewards(window.reward, *ends, discount=config.discount, n_step=config.n_step)
    batch = first_transitions(window, rewards)
    batch = batch._replace(action=td3.actions.to_unit(batch.action))
    recorded, is_recorded = next_actions(td3, window, rewards.position[0])
    importance = importance_weights(sample.probability, batch.weight, td3.beta(state.num_updates))

    target, distance = penalized_targets(td3, config, state.extra, batch, recorded, is_recorded, key)
    state, error, metrics = update_critic(td3, state, batch, target, importance)
    state, actor_metrics = update_when_due(td3, state, batch, partial(actor_loss, td3, config, importance))
    metrics |= actor_metrics | {"policy/next_distance": weighted_mean(distance, batch.weight)}
    return state, metrics, jnp.mean(jnp.abs(error), axis=0)


def next_actions(td3: TD3, window: Trajectory, position: Array) -> tuple[Array, Array]:
    """Returns the recorded actions [N, D] in [-1, 1] at `position` [N], and [N] bool: False where none was recorded.

    None follows the last step of an episode. A truncated one bootstraps without a penalty.
    """
    action = td3.actions.to_unit(take_steps(window.action, position))
    return action, take_steps(window.valid, position)


def penalized_targets(
    td3: TD3,
    config: ReBRACConfig,
    extra: TD3Extra,
    batch: Transitions,
    recorded: Array,
    is_recorded: Array,
    key: Array,
) -> tuple[Array, Array]:
    """Returns [N] float32: R + g^k (min Q'(o', a') - beta_2 |a' - a'_recorded|^2); and the squared distances [N].

    a' is the target actor's action with clipped noise (eq. 5). `key` is consumed.
    """
    action = smoothed_actions(td3, extra.target_actor, batch.next_observation, key)
    value = jnp.min(td3.critics.values(extra.target_critic, batch.next_observation, action), axis=0)
    distance = jnp.where(is_recorded, jnp.sum(jnp.square(action - recorded), axis=-1), 0.0)
    return batch.reward + batch.discount * (value - config.critic_penalty * distance), distance


def actor_loss(
    td3: TD3, config: ReBRACConfig, importance: Array, actor: Params, critic: Params, batch: Transitions
) -> tuple[Array, Metrics]:
    """Returns beta_1 E|mu(o) - a|^2 - E[min Q(o, mu(o))] / E|min Q|, the denominator without gradient (eq. 4); and metrics.

    `importance`, [N], weighs the squared distance.
    """
    action = td3.actor.action(actor, batch.observation)
    value = jnp.min(td3.critics.values(critic, batch.observation, action), axis=0)
    size = jax.lax.stop_gradient(weighted_mean(jnp.abs(value), batch.weight))
    distance = weighted_mean(importance * jnp.sum(jnp.square(action - batch.action), axis=-1), batch.weight)
    size = jnp.where(size > 0.0, size, 1.0)  # 0 if no window counts
    loss = config.actor_penalty * distance - weighted_mean(value, batch.weight) / size
    return loss, {"loss/actor": loss, "policy/distance": distance}
