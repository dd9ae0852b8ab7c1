"""Behavioral cloning (BC): maximum likelihood of recorded actions. Source: Pomerleau 1991, doi:10.1162/neco.1991.3.1.88.

`docs/algorithms/offline.md` has the equations of all offline algorithms.
"""

import dataclasses
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from agents.api import (
    Action,
    AgentState,
    Array,
    LearnerState,
    Metrics,
    Mode,
    Observation,
    Params,
    Replay,
    ReplayAgent,
    ReplayConfig,
    Sample,
)
from agents.binding import keeps_binding
from agents.networks.config import NetworkConfig, validate_plain_network
from agents.networks.observation_scale import normalized_spec
from agents.networks.policy import Policy, make_policy
from agents.ops import validate
from agents.ops.gradient_descent import descend
from agents.ops.optimizers import OptimizerConfig, make_optimizer
from agents.ops.returns import weighted_mean
from agents.ops.schedules import CONSTANT, ScheduleConfig, Schedules, current_values, make_schedule
from agents.settings import complete
from agents.transforms.normalized_samples import with_normalized_samples
from envpool_bridge.spec.specs import EnvSpec


@dataclasses.dataclass(frozen=True)
class BCConfig:
    """Hyper-parameters.

    Attributes:
        replay: Sizes and rates of the replay buffer; of a dataset only the batch size counts.
        normalize_observations: Whether observations are normalized by the statistics of all samples.
        total_updates: Updates of the whole run; needed only by schedules.
        learning_rate: Initial learning rate.
        learning_rate_schedule: Change of the learning rate over the run.
        optimizer: Settings of the optimizer.
    """

    replay: ReplayConfig = dataclasses.field(default_factory=ReplayConfig)
    normalize_observations: bool = True
    total_updates: int = 0
    learning_rate: float = 3e-4
    learning_rate_schedule: ScheduleConfig = CONSTANT
    optimizer: OptimizerConfig = OptimizerConfig(epsilon=1e-8)

    def __post_init__(self) -> None:
        complete(self)
        validate.positive(self, "learning_rate")
        validate.uniform_replay(self, "BC")


class BC(NamedTuple):
    """BC, bound to its configuration and an environment's spec.

    Attributes:
        policy: The policy, of any actions.
        optimizer: Optimizer of the policy.
        rates: Learning rate of "policy" as a function of `num_updates`.
    """

    policy: Policy
    optimizer: optax.GradientTransformationExtraArgs
    rates: Schedules


@keeps_binding
def make_bc(config: BCConfig, spec: EnvSpec, network: NetworkConfig) -> ReplayAgent:
    """Returns a BC agent, for actions of any kind; raises UserError where configuration, environment and network do not fit."""
    spec = normalized_spec(spec, config.normalize_observations)
    validate_plain_network("BC", network)
    rate = make_schedule(config.learning_rate_schedule, config.learning_rate, config.total_updates)
    bc = BC(make_policy(network, spec), make_optimizer(config.optimizer, rate), {"policy": rate})
    agent = ReplayAgent(
        name="bc",
        init=partial(init, bc),
        initial_agent_state=lambda num_rows: (),
        act=partial(act, bc),
        update=partial(update, bc),
        extras={},
        data=Replay(config.replay, sequence_length=1),
    )
    return with_normalized_samples(agent, spec, config.normalize_observations)


def init(bc: BC, key: Array) -> LearnerState:
    """Returns the initial learner state. `key` is consumed."""
    params = bc.policy.init(key)
    return LearnerState(params, bc.optimizer.init(params), jnp.zeros((), jnp.int32))


def act(
    bc: BC,
    params: Params,
    observation: Observation,
    agent_state: AgentState,
    is_first: Array,
    keys: Array,
    mode: Mode,
) -> tuple[Action, dict[str, Array], AgentState]:
    """Returns actions [B, ...] of the policy: its mode when greedy, otherwise samples."""
    del is_first
    parameters, distribution = bc.policy.parameters(params, observation), bc.policy.distribution
    action = distribution.mode(parameters) if mode is Mode.GREEDY else distribution.sample(parameters, keys)
    return action, {}, agent_state


def update(bc: BC, state: LearnerState, sample: Sample, key: Array) -> tuple[LearnerState, Metrics, Array]:
    """Returns the state after one gradient step, metrics, and the windows' priorities, the losses. `key` is not used."""
    del key
    steps = sample.trajectory
    observation, action = jax.tree.map(lambda leaf: leaf[0], (steps.observation, steps.action))
    weight, distribution = steps.valid[0].astype(jnp.float32), bc.policy.distribution

    def loss(params: Params) -> tuple[Array, Array]:
        parameters = bc.policy.parameters(params, observation)
        negative = -distribution.log_prob(parameters, distribution.inside(action))
        return weighted_mean(negative, weight), negative

    (value, negative), gradient = jax.value_and_grad(loss, has_aux=True)(state.params)
    params, opt_state = descend(bc.optimizer, gradient, state.opt_state, state.params, state.num_updates)
    metrics = {"loss/total": value, "gradient/norm": optax.tree.norm(gradient)}
    metrics |= current_values({"learning_rate": bc.rates["policy"]}, state.num_updates)
    priority = jnp.maximum(negative, 0.0) * weight
    return LearnerState(params, opt_state, state.num_updates, state.extra), metrics, priority
