"""Discrete batch-constrained Q-learning (BCQ). Source: Fujimoto et al. 2019 (arXiv:1910.01708), algorithm 1.

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
from agents.dqn import DQN, DQNConfig, apply_gradient, bind_dqn, build_dqn, loss, n_step_returns, validate_memoryless
from agents.networks.config import NetworkConfig
from agents.networks.distributions.masking import mask_logits
from agents.networks.observation_scale import normalized_spec
from agents.networks.q_network import QNetwork, QOptions, make_q_network
from agents.ops import validate
from agents.ops.epsilon_greedy import select_action
from agents.ops.importance_weights import importance_weights
from agents.ops.n_step import Transitions, first_transitions
from agents.ops.returns import weighted_mean
from agents.transforms.normalized_samples import with_normalized_samples
from envpool_bridge.spec.specs import EnvSpec


@dataclasses.dataclass(frozen=True)
class DiscreteBCQConfig(DQNConfig):
    """Hyper-parameters of DQN, and those of BCQ; the defaults are the paper's for Atari.

    Attributes:
        threshold: tau: smallest probability of an action that may be chosen, as a fraction of the most probable action's. 0 is
            double DQN, 1 behavioral cloning.
        logit_penalty: Weight of the mean squared logit of the behavior policy.
    """

    replay: ReplayConfig = dataclasses.field(default_factory=ReplayConfig)
    double: bool = True
    epsilon_start: float = 0.0
    epsilon_end: float = 0.0
    learning_rate: float = 6.25e-5
    target_update_period: int = 8_000
    threshold: float = 0.3
    logit_penalty: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.fraction(self, "threshold")
        validate.not_negative(self, "logit_penalty")


class DiscreteBCQ(NamedTuple):
    """BCQ, bound to its configuration and an environment's spec.

    Attributes:
        config: Hyper-parameters.
        dqn: DQN that chooses among likely actions only; its network's parameters are {"values", "behavior"}.
        behavior: The behavior policy; its outputs are logits [..., A, 1].
    """

    config: DiscreteBCQConfig
    dqn: DQN
    behavior: QNetwork


@keeps_binding
def make_discrete_bcq(config: DiscreteBCQConfig, spec: EnvSpec, network: NetworkConfig) -> ReplayAgent:
    """Returns a BCQ agent for discrete actions; raises UserError as `make_dqn` does."""
    spec = normalized_spec(spec, config.normalize_observations)
    bcq = build_discrete_bcq(config, spec, network)
    agent = bind_dqn(bcq.dqn)._replace(name="discrete_bcq", update=partial(update, bcq))
    return with_normalized_samples(agent, spec, config.normalize_observations)


def build_discrete_bcq(config: DiscreteBCQConfig, spec: EnvSpec, network: NetworkConfig) -> DiscreteBCQ:
    """Returns the networks, optimizer and schedules; raises UserError as `make_dqn` does."""
    validate_memoryless(network)
    dqn, behavior = build_dqn(config, spec, network), make_q_network(network, spec, QOptions())
    return DiscreteBCQ(config, dqn._replace(net=constrained(dqn.net, behavior, config.threshold)), behavior)


def constrained(values: QNetwork, behavior: QNetwork, threshold: float) -> QNetwork:
    """Returns the Q-network `values` with parameters {"values", "behavior"}, of which only likely actions are legal."""

    def init(key: Array) -> Params:
        values_key, behavior_key = jax.random.split(key)
        return {"values": values.init(values_key), "behavior": behavior.init(behavior_key)}

    return values._replace(
        init=init,
        outputs=lambda params, *inputs: values.outputs(params["values"], *inputs),
        unroll=lambda params, *inputs: values.unroll(params["values"], *inputs),
        legal=lambda params, observation: likely_actions(behavior, threshold, params["behavior"], observation),
    )


def likely_actions(behavior: QNetwork, threshold: float, params: Params, observation: Observation) -> Array:
    """Returns [..., A] bool: whether p(a|o) / max_b p(b|o) >= threshold, and the action is legal.

    The most probable legal action always is.
    """
    legal = behavior.legal(params, observation)
    logits = mask_logits(behavior.outputs(params, observation, None)[..., 0], legal)
    # A difference of logits is one of log-probabilities.
    likely = logits - jnp.max(logits, axis=-1, keepdims=True) >= jnp.log(threshold)
    return likely if legal is None else likely & (legal != 0)


def update(bcq: DiscreteBCQ, state: LearnerState, sample: Sample, key: Array) -> tuple[LearnerState, Metrics, Array]:
    """Returns the state after one gradient step, metrics, and the windows' priorities. `key` is consumed (by noisy layers)."""
    window, dqn = sample.trajectory, bcq.dqn
    batch = first_transitions(window, n_step_returns(bcq.config, window))
    importance = importance_weights(sample.probability, batch.weight, dqn.beta(state.num_updates))

    def total_loss(params: Params) -> tuple[Array, tuple[Metrics, Array]]:
        error, (metrics, priority) = loss(dqn, params, state.extra.target, batch, importance, key)
        imitation, behavior_metrics = imitation_loss(bcq, params["behavior"], batch, importance)
        total = error + imitation
        return total, (metrics | behavior_metrics | {"loss/total": total}, priority)

    grads, (metrics, priority) = jax.grad(total_loss, has_aux=True)(state.params["network"])
    state, step_metrics = apply_gradient(dqn, state, grads)
    return state, metrics | step_metrics, priority


def imitation_loss(bcq: DiscreteBCQ, params: Params, batch: Transitions, importance: Array) -> tuple[Array, Metrics]:
    """Returns -E[w log p(a|o)] + c E[w mean_b logit_b^2] of the behavior policy with these parameters; and metrics.

    w is `importance`, [N], and c the weight of the penalty.
    """
    logits = bcq.behavior.outputs(params, batch.observation, None)[..., 0]
    log_prob = jax.nn.log_softmax(mask_logits(logits, bcq.behavior.legal(params, batch.observation)))
    mean = partial(weighted_mean, weight=batch.weight)
    negative = -mean(importance * select_action(log_prob, batch.action))
    penalty = mean(importance * jnp.mean(jnp.square(logits), axis=-1))
    likely = likely_actions(bcq.behavior, bcq.config.threshold, params, batch.observation)
    metrics = {
        "loss/behavior": negative,
        "policy/likely_fraction": mean(jnp.mean(likely, axis=-1, dtype=jnp.float32)),
    }
    return negative + bcq.config.logit_penalty * penalty, metrics
