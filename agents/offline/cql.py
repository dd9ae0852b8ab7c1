"""Conservative Q-learning (CQL) for continuous actions. Source: Kumar et al. 2020 (arXiv:2006.04779), CQL(H) of equation 4.

`docs/algorithms/offline.md` has the equations of all offline algorithms.
"""

import dataclasses
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from agents.api import (
    Array,
    LearnerState,
    Metrics,
    Observation,
    Params,
    ReplayAgent,
    ReplayConfig,
    Sample,
)
from agents.binding import keeps_binding
from agents.networks.config import NetworkConfig
from agents.networks.critics import critic_loss
from agents.networks.observation_scale import normalized_spec
from agents.ops import validate
from agents.ops.importance_weights import importance_weights
from agents.ops.n_step import Transitions, first_n_step_transitions
from agents.ops.returns import weighted_mean
from agents.sac import (
    SAC,
    SACConfig,
    bind_sac,
    build_sac,
    sample_actions,
    target_values,
    update_actor_when_due,
    update_critics,
)
from agents.transforms.normalized_samples import with_normalized_samples
from envpool_bridge.spec.specs import EnvSpec


@dataclasses.dataclass(frozen=True)
class CQLConfig(SACConfig):
    """Hyper-parameters of SAC, and those of CQL.

    Attributes:
        conservative_weight: alpha: weight of the difference between the soft maximum of action values and the values of recorded
            actions.
        num_sampled_actions: Actions each of which are uniform, of the policy, and of the policy at the next observation, to
            estimate the soft maximum.
    """

    replay: ReplayConfig = dataclasses.field(default_factory=ReplayConfig)
    actor_learning_rate: float = 1e-4
    conservative_weight: float = 5.0
    num_sampled_actions: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.at_least_one(self, "num_sampled_actions")
        validate.not_negative(self, "conservative_weight")


class CQL(NamedTuple):
    """CQL, bound to its configuration and an environment's spec.

    Attributes:
        config: Hyper-parameters.
        sac: Parts that CQL shares with SAC.
    """

    config: CQLConfig
    sac: SAC


@keeps_binding
def make_cql(config: CQLConfig, spec: EnvSpec, network: NetworkConfig) -> ReplayAgent:
    """Returns a CQL agent, for continuous actions; raises UserError as `make_sac` does."""
    spec = normalized_spec(spec, config.normalize_observations)
    cql = CQL(config, build_sac(config, spec, network))
    agent = bind_sac(cql.sac)._replace(name="cql", update=partial(update, cql))
    return with_normalized_samples(agent, spec, config.normalize_observations)


def update(cql: CQL, state: LearnerState, sample: Sample, key: Array) -> tuple[LearnerState, Metrics, Array]:
    """Returns the state after one gradient step, metrics, and the windows' priorities. `key` is consumed.

    The order is SAC's. Targets have no entropy term.
    """
    target_key, conservative_key, actor_key = jax.random.split(key, 3)
    sac, actor = cql.sac, state.params["actor"]
    batch = first_n_step_transitions(sample.trajectory, cql.config.discount, cql.config.n_step)
    batch = batch._replace(action=sac.actions.to_unit(batch.action))
    importance = importance_weights(sample.probability, batch.weight, sac.beta(state.num_updates))

    next_action, _ = sample_actions(sac, actor, batch.next_observation, target_key)
    bootstrap = target_values(sac, state.extra, batch.next_observation, next_action, jax.random.fold_in(target_key, 1))
    target = batch.reward + batch.discount * bootstrap
    learned = {"actor": actor, "batch": batch, "target": target, "importance": importance}
    loss = partial(conservative_loss, cql, **learned, key=conservative_key)
    state, error, metrics = update_critics(sac, state, loss)
    state, actor_metrics = update_actor_when_due(sac, state, batch, actor_key)
    metrics |= actor_metrics | {"value/target": weighted_mean(target, batch.weight)}
    return state, metrics, jnp.mean(jnp.abs(error), axis=0)


def conservative_loss(
    cql: CQL,
    critic: Params,
    *,
    actor: Params,
    batch: Transitions,
    target: Array,
    importance: Array,
    key: Array,
) -> tuple[Array, tuple[Array, Metrics]]:
    """Returns SAC's loss + alpha E[log sum exp Q - Q(o, a)], summed over critics; the errors [E, N]; and metrics.

    Consumes `key`.
    """
    error_loss, (error, metrics) = critic_loss(cql.sac.critics, critic, batch, target, importance)
    recorded = cql.sac.critics.values(critic, batch.observation, batch.action)
    gap = soft_maximum(cql, critic, actor, batch, key) - recorded
    conservative = jnp.sum(jax.vmap(lambda row: weighted_mean(importance * row, batch.weight))(gap))
    loss = error_loss + cql.config.conservative_weight * conservative
    return loss, (error, metrics | {"loss/critic": loss, "loss/conservative": conservative})


def soft_maximum(cql: CQL, critic: Params, actor: Params, batch: Transitions, key: Array) -> Array:
    """Returns [E, N] float32: log sum exp of Q(o, a) - log q(a) over sampled actions (appendix F). Consumes `key`.

    A third each of the actions is uniform, of the policy at o, and of the policy at o' (but valued at o).
    """
    uniform_key, policy_key, next_key = jax.random.split(key, 3)
    count, size = cql.config.num_sampled_actions, cql.sac.actions.size

    def repeated(observation: Observation) -> Observation:
        return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (count, *leaf.shape)), observation)

    here, after = repeated(batch.observation), repeated(batch.next_observation)
    uniform = jax.random.uniform(uniform_key, (count, *batch.reward.shape, size), minval=-1.0)
    log_uniform = jnp.full(uniform.shape[:-1], -size * jnp.log(2.0))
    pairs = [
        (uniform, log_uniform),
        sample_actions(cql.sac, actor, here, policy_key),
        sample_actions(cql.sac, actor, after, next_key),
    ]
    corrected = [cql.sac.critics.values(critic, here, action) - log_prob for action, log_prob in pairs]
    return jax.nn.logsumexp(jnp.concatenate(corrected, axis=1), axis=1)
