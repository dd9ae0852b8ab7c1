"""Deep Q-networks, with the options of double, dueling, prioritized, n-step, distributional and noisy DQN and Ape-X.

Source: Mnih et al. 2015, algorithm 1. `docs/algorithms/dqn.md` lists the sources of the options and every deviation.
Rainbow is six of the options at once: `experiments/rainbow_atari.py`.
"""

import dataclasses
from functools import partial
from typing import Literal, NamedTuple

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
    Trajectory,
)
from agents.binding import keeps_binding
from agents.networks.config import NetworkConfig
from agents.networks.observation_scale import normalized_spec
from agents.networks.q_network import QNetwork, QOptions, make_q_network
from agents.ops import validate
from agents.ops.epsilon_greedy import (
    apex_epsilon_exponents,
    epsilon_greedy,
    epsilon_schedule,
    greedy,
    select_action,
)
from agents.ops.importance_weights import importance_exponent_schedule, importance_weights
from agents.ops.n_step import NStepRewards, Transitions, first_transitions, n_step_rewards, take_steps
from agents.ops.optimizers import OptimizerConfig, make_optimizer
from agents.ops.returns import weighted_mean
from agents.ops.schedules import CONSTANT, Schedule, ScheduleConfig, current_values, make_schedule, sync_scheduled
from agents.ops.target_update import descend_with_target, init_target
from agents.ops.value_distributions import ValueDistribution, ValueType, clamped_fraction, make_value_distribution
from agents.settings import complete
from agents.transforms.normalized_samples import with_normalized_samples
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, EnvSpec

ACTOR_VALUES = {"value": ArraySpec((), "float32"), "max_value": ArraySpec((), "float32")}
"""Values that `act` records for initial priorities: of the chosen action, and of the best legal action."""


@dataclasses.dataclass(frozen=True)
class DQNConfig:
    """Hyper-parameters; the defaults are plain DQN with Adam. Every option is off by default.

    Attributes:
        replay: Sizes, rates and priorities of the replay buffer.
        epsilon_start: Probability of a random action at the first update.
        epsilon_end: Probability of a random action after its linear decay.
        epsilon_decay_fraction: Fraction of the run over which epsilon decays.
        eval_epsilon: Probability of a random action in evaluations (greedy mode); 0.001 or 0.05 in Atari papers.
        apex_alpha: alpha of Ape-X (7 in the paper): row i of B explores with epsilon^(1 + alpha i / (B - 1)). 0: all rows alike.
        total_updates: Trajectories of the whole run, for all schedules.
        learning_rate: Initial learning rate.
        learning_rate_schedule: Change of the learning rate over the run.
        optimizer: Settings of the optimizer.
        discount: g, per env step.
        n_step: Rewards of a return before it bootstraps.
        target_update_period: Gradient steps between two copies to the target network.
        double: The online network chooses the action that the target network evaluates (van Hasselt et al. 2016).
        dueling: Separate streams for the value and the advantages (Wang et al. 2016).
        noisy: Noisy layers in the streams (Fortunato et al. 2018); epsilon may then be 0.
        noisy_sigma: sigma_0 of the noisy layers.
        value_type: "scalar", or a distribution of returns: "c51" (Bellemare et al. 2017), "quantile" (Dabney et al. 2018).
        num_atoms: Atoms of "c51", or quantiles of "quantile".
        v_min: Smallest return of "c51".
        v_max: Largest return of "c51".
        huber_delta: Absolute error beyond which the loss is linear, of "scalar" (None: nowhere) and "quantile".
        value_rescale_epsilon: epsilon of R2D2's rescaling of values ("scalar" only). None: off.
        reward_clip: Rewards are clipped to [-reward_clip, reward_clip]. None: off.
        normalize_observations: Whether observations are normalized by the statistics of all samples.
        importance_sampling_exponent: beta of prioritized replay at the first update.
        importance_sampling_end: beta at the end of the run; it changes linearly.
        initial_priority: Priority of new windows: the "max" of all so far, or from values that the "actor" recorded (Ape-X).
    """

    replay: ReplayConfig = dataclasses.field(default_factory=ReplayConfig)
    epsilon_start: float = 1.0
    epsilon_end: float = 0.05
    epsilon_decay_fraction: float = 0.5
    eval_epsilon: float = 0.0
    apex_alpha: float = 0.0
    total_updates: int = 0
    learning_rate: float = 2.5e-4
    learning_rate_schedule: ScheduleConfig = CONSTANT
    optimizer: OptimizerConfig = OptimizerConfig(epsilon=1.5e-4, max_grad_norm=10.0)
    discount: float = 0.99
    n_step: int = 1
    target_update_period: int = 1_000
    double: bool = False
    dueling: bool = False
    noisy: bool = False
    noisy_sigma: float = 0.5
    value_type: ValueType = "scalar"
    num_atoms: int = 51
    v_min: float = -10.0
    v_max: float = 10.0
    huber_delta: float | None = 1.0
    value_rescale_epsilon: float | None = None
    reward_clip: float | None = None
    normalize_observations: bool = False
    importance_sampling_exponent: float = 0.4
    importance_sampling_end: float = 1.0
    initial_priority: Literal["max", "actor"] = "max"

    def __post_init__(self) -> None:
        complete(self)
        validate.choices(self)
        validate.at_least_one(self, "n_step", "target_update_period")
        validate.positive(self, "learning_rate", "noisy_sigma")
        validate.positive(self, "huber_delta", "value_rescale_epsilon", "reward_clip")
        validate.fraction(self, "discount", "importance_sampling_exponent", "importance_sampling_end")
        validate.fraction(self, "epsilon_start", "epsilon_end", "eval_epsilon")
        validate.fraction(self, "epsilon_decay_fraction", above_zero=True)
        validate.not_negative(self, "apex_alpha")
        validate.value_distribution(self)
        if self.value_type == "c51" and self.initial_priority == "actor":
            raise UserError(
                "priorities from the actor are absolute errors, those of value_type='c51' are divergences: expected "
                "initial_priority='max' with it, got 'actor'"
            )


class DQN(NamedTuple):
    """DQN or R2D2, bound to its configuration and an environment's spec.

    Attributes:
        config: Hyper-parameters.
        net: The Q-network.
        values: Meaning of the network's outputs.
        optimizer: Optimizer of the network.
        epsilon: Exploration rate as a function of `num_updates`.
        learning_rate: Learning rate as a function of `num_updates`.
        beta: Importance-sampling exponent as a function of `num_updates`.
    """

    config: DQNConfig
    net: QNetwork
    values: ValueDistribution
    optimizer: optax.GradientTransformationExtraArgs
    epsilon: Schedule
    learning_rate: optax.Schedule
    beta: Schedule


@keeps_binding
def make_dqn(config: DQNConfig, spec: EnvSpec, network: NetworkConfig) -> ReplayAgent:
    """Returns a DQN agent.

    Raises:
        UserError: If the action is not one Discrete leaf, the network is recurrent or does not fit, or a schedule needs the
            number of updates.
    """
    spec = normalized_spec(spec, config.normalize_observations)
    validate_memoryless(network)
    agent = bind_dqn(build_dqn(config, spec, network))
    return with_normalized_samples(agent, spec, config.normalize_observations)


def validate_memoryless(network: NetworkConfig) -> None:
    """Raises UserError if the network is recurrent."""
    if network.core != "none":
        raise UserError(
            f"DQN learns from single steps, without the state of a memory: expected network.core 'none', got {network.core!r}; "
            f"use R2D2"
        )


def bind_dqn(dqn: DQN) -> ReplayAgent:
    """Returns the agent of a bound DQN, for observations as they are."""
    config = dqn.config
    return ReplayAgent(
        name="dqn",
        init=partial(init, dqn),
        initial_agent_state=partial(initial_agent_state, dqn),
        act=partial(act, dqn),
        update=partial(update, dqn),
        extras=ACTOR_VALUES if config.initial_priority == "actor" else {},
        data=Replay(
            config.replay,
            config.n_step,
            sync_acting_params=partial(sync_scheduled, "epsilon", dqn.epsilon),
            initial_priority=partial(initial_priority, dqn) if config.initial_priority == "actor" else None,
        ),
    )


def build_dqn(config: DQNConfig, spec: EnvSpec, network: NetworkConfig) -> DQN:
    """Returns the network, optimizer and schedules; raises UserError as `make_dqn` does."""
    values, total = make_value_distribution(config), config.total_updates
    options = QOptions(values.num_outputs, config.dueling, config.noisy_sigma if config.noisy else None)
    learning_rate = make_schedule(config.learning_rate_schedule, config.learning_rate, total)
    return DQN(
        config,
        make_q_network(network, spec, options),
        values,
        make_optimizer(config.optimizer, learning_rate),
        epsilon_schedule(config.epsilon_start, config.epsilon_end, config.epsilon_decay_fraction, total),
        learning_rate,
        importance_exponent_schedule(
            config.replay, config.importance_sampling_exponent, total, config.importance_sampling_end
        ),
    )


def init(dqn: DQN, key: Array) -> LearnerState:
    """Returns the initial learner state; the target network is a copy of the network. `key` is consumed."""
    network, zero = dqn.net.init(key), jnp.zeros((), jnp.int32)
    state = LearnerState({"network": network}, dqn.optimizer.init(network), zero, init_target(network))
    return sync_scheduled("epsilon", dqn.epsilon, state)


def initial_agent_state(dqn: DQN, num_rows: int) -> AgentState:
    """Returns the network's state; with Ape-X exploration also each row's exponent of epsilon."""
    state = dqn.net.initial_state(num_rows)
    if not dqn.config.apex_alpha:
        return state
    return {"network": state, "exponent": apex_epsilon_exponents(dqn.config.apex_alpha, num_rows)}


def act(
    dqn: DQN,
    params: Params,
    observation: Observation,
    agent_state: AgentState,
    is_first: Array,
    keys: Array,
    mode: Mode,
) -> tuple[Action, dict[str, Array], AgentState]:
    """Returns epsilon-greedy legal actions [B]; greedy mode uses `eval_epsilon` and the mean weights of noisy layers."""
    net, config = dqn.net, dqn.config
    noise_keys, choice_keys = jax.vmap(jax.random.split, out_axes=1)(keys)
    noise = noise_keys if config.noisy and mode is Mode.SAMPLE else None
    state = agent_state["network"] if config.apex_alpha else agent_state
    outputs, state = net.step(params["network"], observation, state, is_first, noise)
    value, legal, epsilon = dqn.values.mean(outputs), net.legal(params["network"], observation), params["epsilon"]
    if config.apex_alpha:
        epsilon = jnp.power(epsilon, agent_state["exponent"])
        state = {"network": state, "exponent": agent_state["exponent"]}
    if mode is Mode.GREEDY:
        epsilon = config.eval_epsilon
    explores = mode is Mode.SAMPLE or config.eval_epsilon > 0.0
    action = epsilon_greedy(value, legal, epsilon, choice_keys) if explores else greedy(value, legal)
    extras: dict[str, Array] = {}
    if config.initial_priority == "actor":
        extras = {"value": select_action(value, action), "max_value": select_action(value, greedy(value, legal))}
    return action, extras, state


def update(dqn: DQN, state: LearnerState, sample: Sample, key: Array) -> tuple[LearnerState, Metrics, Array]:
    """Returns the state after one gradient step, metrics, and the windows' priorities. `key` is consumed (by noisy layers)."""
    window = sample.trajectory
    batch = first_transitions(window, n_step_returns(dqn.config, window))
    importance = importance_weights(sample.probability, batch.weight, dqn.beta(state.num_updates))
    gradient = jax.grad(partial(loss, dqn), has_aux=True)
    grads, (metrics, priority) = gradient(state.params["network"], state.extra.target, batch, importance, key)
    state, step_metrics = apply_gradient(dqn, state, grads)
    return state, metrics | step_metrics, priority


def n_step_returns(config: DQNConfig, steps: Trajectory) -> NStepRewards:
    """Returns the sums of up to `n_step` clipped rewards from each step."""
    reward = steps.reward
    if config.reward_clip is not None:
        reward = jnp.clip(reward, -config.reward_clip, config.reward_clip)
    return n_step_rewards(
        reward, steps.terminated, steps.truncated, steps.valid, discount=config.discount, n_step=config.n_step
    )


def loss(
    dqn: DQN, params: Params, target: Params, batch: Transitions, importance: Array, key: Array
) -> tuple[Array, tuple[Metrics, Array]]:
    """Returns the mean weighted loss of the chosen actions, metrics, and the priorities [N].

    Args:
        dqn: The bound algorithm.
        params: Parameters of the network.
        target: Parameters of the target network.
        batch: N transitions.
        importance: [N] float32 importance weights.
        key: Key of the noisy layers, consumed.
    """
    keys = jax.random.split(key, 3) if dqn.config.noisy else (None, None, None)
    net, values = dqn.net, dqn.values
    chosen = select_action(net.outputs(params, batch.observation, keys[0]), batch.action)
    next_target = net.outputs(target, batch.next_observation, keys[1])
    next_online = net.outputs(params, batch.next_observation, keys[2]) if dqn.config.double else next_target
    best = greedy(values.mean(next_online), net.legal(params, batch.next_observation))
    bootstrap = jax.lax.stop_gradient(select_action(next_target, best))
    error, priority = values.loss(chosen, bootstrap, batch.reward, batch.discount)
    mean = partial(weighted_mean, weight=batch.weight)
    total = mean(error * importance)
    metrics = {
        "loss/total": total,
        "value/mean": mean(values.mean(chosen)),
        "value/bootstrap": mean(values.mean(bootstrap)),
        "replay/priority": mean(priority),
        "replay/importance": mean(importance),
    }
    metrics |= clamped_fraction(values, bootstrap, batch.reward, batch.discount, batch.weight)
    return total, (metrics, priority * batch.weight)


def apply_gradient(dqn: DQN, state: LearnerState, grads: Params) -> tuple[LearnerState, Metrics]:
    """Returns the state after one optimizer step, its target network copied when due, and metrics of the step."""
    metrics = current_values({"learning_rate": dqn.learning_rate}, state.num_updates)
    metrics |= {"exploration/epsilon": state.params["epsilon"], "gradient/norm": optax.tree.norm(grads)}
    return descend_with_target(dqn.optimizer, grads, state, dqn.config.target_update_period), metrics


def actor_td_errors(dqn: DQN, steps: Trajectory) -> Array:
    """Returns [S, B] float32 absolute temporal differences of S steps from the values that `act` recorded; 0 where not valid.

    The value after the last step is not recorded; the value of the last observation replaces it.
    """
    rewards = n_step_returns(dqn.config, steps)
    bootstrap = take_steps(steps.extras["max_value"], jnp.minimum(rewards.position, steps.reward.shape[0] - 1))
    error = dqn.values.backup(rewards.reward, rewards.discount, bootstrap) - steps.extras["value"]
    return jnp.where(steps.valid, jnp.abs(error), 0.0)


def initial_priority(dqn: DQN, steps: Trajectory) -> Array:
    """Returns [T, B] priorities of the windows that start at the first T of T + n - 1 steps (Ape-X)."""
    errors = actor_td_errors(dqn, steps)
    return errors[: errors.shape[0] - dqn.config.n_step + 1]
