"""Conservative Q-learning for discrete actions. Source: Kumar et al. 2020 (arXiv:2006.04779), equation 4 with the entropy term.

`docs/algorithms/offline.md` has the equations of all offline algorithms.
"""

import dataclasses
from functools import partial

import jax

from agents.api import Array, LearnerState, Metrics, Params, ReplayAgent, ReplayConfig, Sample
from agents.binding import keeps_binding
from agents.dqn import DQN, DQNConfig, apply_gradient, bind_dqn, build_dqn, loss, n_step_returns, validate_memoryless
from agents.networks.config import NetworkConfig
from agents.networks.distributions.masking import mask_logits
from agents.networks.observation_scale import normalized_spec
from agents.ops import validate
from agents.ops.epsilon_greedy import select_action
from agents.ops.importance_weights import importance_weights
from agents.ops.n_step import Transitions, first_transitions
from agents.ops.returns import weighted_mean
from agents.transforms.normalized_samples import with_normalized_samples
from envpool_bridge.spec.specs import EnvSpec


@dataclasses.dataclass(frozen=True)
class DiscreteCQLConfig(DQNConfig):
    """Hyper-parameters of DQN, and one of CQL.

    Attributes:
        conservative_weight: alpha: weight of the difference between the soft maximum of all action values and the value of the
            recorded action (4 for 1 % of an Atari replay buffer).
    """

    replay: ReplayConfig = dataclasses.field(default_factory=ReplayConfig)
    double: bool = True
    epsilon_start: float = 0.0
    epsilon_end: float = 0.0
    conservative_weight: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.not_negative(self, "conservative_weight")


@keeps_binding
def make_discrete_cql(config: DiscreteCQLConfig, spec: EnvSpec, network: NetworkConfig) -> ReplayAgent:
    """Returns a CQL agent for discrete actions; raises UserError as `make_dqn` does."""
    spec = normalized_spec(spec, config.normalize_observations)
    validate_memoryless(network)
    dqn = build_dqn(config, spec, network)
    agent = bind_dqn(dqn)._replace(name="discrete_cql", update=partial(update, dqn, config.conservative_weight))
    return with_normalized_samples(agent, spec, config.normalize_observations)


def update(
    dqn: DQN, conservative_weight: float, state: LearnerState, sample: Sample, key: Array
) -> tuple[LearnerState, Metrics, Array]:
    """Returns the state after one gradient step, metrics, and the windows' priorities. `key` is consumed (by noisy layers)."""
    window = sample.trajectory
    batch = first_transitions(window, n_step_returns(dqn.config, window))
    importance = importance_weights(sample.probability, batch.weight, dqn.beta(state.num_updates))
    gradient = jax.grad(partial(conservative_loss, dqn, conservative_weight), has_aux=True)
    grads, (metrics, priority) = gradient(state.params["network"], state.extra.target, batch, importance, key)
    state, step_metrics = apply_gradient(dqn, state, grads)
    return state, metrics | step_metrics, priority


def conservative_loss(
    dqn: DQN,
    conservative_weight: float,
    params: Params,
    target: Params,
    batch: Transitions,
    importance: Array,
    key: Array,
) -> tuple[Array, tuple[Metrics, Array]]:
    """Returns DQN's loss + alpha E[log sum_a exp Q(o, a) - Q(o, a_recorded)] over legal actions; metrics; priorities [N]."""
    error, (metrics, priority) = loss(dqn, params, target, batch, importance, key)
    values = dqn.values.mean(dqn.net.outputs(params, batch.observation, None))
    values = mask_logits(values, dqn.net.legal(params, batch.observation))
    gap = jax.nn.logsumexp(values, axis=-1) - select_action(values, batch.action)
    conservative = weighted_mean(importance * gap, batch.weight)
    total = error + conservative_weight * conservative
    return total, (metrics | {"loss/total": total, "loss/conservative": conservative}, priority)
