"""MuZero: search in a learned model, by Gumbel MuZero or PUCT, with Sampled MuZero's actions and with reanalysis.

Source: Schrittwieser et al. 2020 (arXiv:1911.08265). `docs/algorithms/muzero.md` lists the sources of the options and every
deviation.
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
from agents.networks.consistency import ConsistencyNetwork, make_consistency_network, unrolled_consistency
from agents.networks.model_search import SearchFn, make_search, recorded_search, search_again
from agents.networks.muzero import MuZeroNetwork, halve_gradient, latent_of, make_muzero_network
from agents.networks.search_actions import SearchActions, absorbing_actions, make_search_actions
from agents.ops import validate
from agents.ops.importance_weights import importance_exponent_schedule, importance_weights
from agents.ops.optimizers import OptimizerConfig, make_optimizer
from agents.ops.returns import weighted_mean
from agents.ops.schedules import CONSTANT, Schedule, ScheduleConfig, current_values, make_schedule, sync_scheduled
from agents.ops.target_update import TargetNetwork, descend_with_target, init_target
from agents.ops.two_hot import clamped_fraction, cross_entropy, num_atoms, two_hot, two_hot_mean
from agents.ops.unrolled_targets import UnrolledTargets, shortened_returns, unrolled_priorities, unrolled_targets
from agents.search.gumbel import GumbelConfig
from agents.search.puct import PUCTConfig
from agents.settings import complete
from envpool_bridge.spec.specs import ArraySpec, EnvSpec


@dataclasses.dataclass(frozen=True)
class MuZeroConfig:
    """Hyper-parameters.

    Attributes:
        replay: Sizes, rates and priorities of the replay buffer.
        search: "gumbel" (Danihelka et al. 2022), which improves the policy with few simulations, or "puct".
        gumbel: Settings of the search "gumbel".
        puct: Settings of the search "puct".
        temperature: Temperature of the choice among visit counts by "puct", while acting.
        temperature_schedule: Change of the temperature over the run.
        num_proposals: Actions that the policy proposes at each node, where actions are not one Discrete number.
        latent_size: D, numbers in a latent state.
        value_limit: Largest rescaled value and reward that networks represent: 20 stands for about 420, 300 for about 58,700.
        unroll_steps: K, steps of the model in a loss.
        n_step: Rewards of a value target before it bootstraps.
        n_step_decay_fraction: Fraction of the run in which a window's n falls by 1 as it ages (EfficientZero: 0.3); a dataset's
            windows are as old as the run. None: never.
        discount: g, per env step.
        value_coef: Weight of the loss of values.
        reward_coef: Weight of the loss of rewards.
        consistency_coef: Weight of the negative cosine between predicted and observed states (EfficientZero: 2). 0: without.
        projection_size: Numbers in the vectors that the consistency loss compares.
        value_prefix: Whether the model predicts sums of rewards over an unroll by an LSTM (EfficientZero), not each reward.
        target_update_period: Gradient steps between two copies to the target network, which bootstraps and reanalyzes.
        reanalyze_fraction: Share of the windows of each sample, those of a dataset too, whose search policies are computed again
            (MuZero Reanalyze).
        total_updates: Trajectories of the whole run, for all schedules.
        learning_rate: Initial learning rate.
        learning_rate_schedule: Change of the learning rate over the run.
        optimizer: Settings of the optimizer.
        importance_sampling_exponent: beta of prioritized replay at the first update; 1 at the end.
    """

    replay: ReplayConfig = dataclasses.field(default_factory=lambda: ReplayConfig(gradient_steps_per_env_step=0.25))
    search: Literal["gumbel", "puct"] = "gumbel"
    gumbel: GumbelConfig = dataclasses.field(default_factory=GumbelConfig)
    puct: PUCTConfig = dataclasses.field(default_factory=PUCTConfig)
    temperature: float = 1.0
    temperature_schedule: ScheduleConfig = CONSTANT
    num_proposals: int = 16
    latent_size: int = 128
    value_limit: int = 300
    unroll_steps: int = 5
    n_step: int = 5
    n_step_decay_fraction: float | None = None
    discount: float = 0.997
    value_coef: float = 0.25
    reward_coef: float = 1.0
    consistency_coef: float = 0.0
    projection_size: int = 256
    value_prefix: bool = False
    target_update_period: int = 200
    reanalyze_fraction: float = 0.0
    total_updates: int = 0
    learning_rate: float = 1e-3
    learning_rate_schedule: ScheduleConfig = CONSTANT
    optimizer: OptimizerConfig = OptimizerConfig(weight_decay=1e-4, max_grad_norm=5.0)
    importance_sampling_exponent: float = 1.0

    def __post_init__(self) -> None:
        complete(self)
        validate.choices(self)
        validate.at_least_one(self, "num_proposals", "latent_size", "value_limit", "unroll_steps", "n_step")
        validate.at_least_one(self, "target_update_period", "projection_size")
        validate.positive(self, "learning_rate", "temperature", "n_step_decay_fraction")
        validate.fraction(self, "discount", "reanalyze_fraction", "importance_sampling_exponent")
        validate.not_negative(self, "value_coef", "reward_coef", "consistency_coef")


class MuZero(NamedTuple):
    """MuZero, bound to its configuration and an environment's spec.

    Attributes:
        config: Hyper-parameters.
        net: Representation, dynamics and prediction.
        consistency: Networks of the consistency loss; None without it.
        actions: Actions among which nodes choose.
        search: Search in the model.
        optimizer: Optimizer of the networks.
        learning_rate: Learning rate as a function of `num_updates`.
        temperature: Temperature of "puct" as a function of `num_updates`.
        beta: Importance-sampling exponent as a function of `num_updates`.
    """

    config: MuZeroConfig
    net: MuZeroNetwork
    consistency: ConsistencyNetwork | None
    actions: SearchActions
    search: SearchFn
    optimizer: optax.GradientTransformationExtraArgs
    learning_rate: optax.Schedule
    temperature: optax.Schedule
    beta: Schedule


@keeps_binding
def make_muzero(config: MuZeroConfig, spec: EnvSpec, network: NetworkConfig) -> ReplayAgent:
    """Returns a MuZero agent.

    Raises:
        UserError: If the action has several arrays, the network is recurrent or does not fit, or a schedule needs the number of
            updates.
    """
    muzero = build_muzero(config, spec, network)
    extras = {
        "search_policy": ArraySpec((muzero.actions.num_choices,), "float32"),
        "root_value": ArraySpec((), "float32"),
    }
    return ReplayAgent(
        name="muzero",
        init=partial(init, muzero),
        initial_agent_state=lambda num_rows: (),
        act=partial(act, muzero),
        update=partial(update, muzero),
        extras={**extras, **muzero.actions.extras},
        data=Replay(
            config.replay,
            config.unroll_steps + config.n_step,
            sync_acting_params=partial(sync_scheduled, "temperature", muzero.temperature),
            initial_priority=partial(
                unrolled_priorities, unroll_steps=config.unroll_steps, n_step=config.n_step, discount=config.discount
            ),
            transforms=(partial(reanalyze, muzero),) if config.reanalyze_fraction else (),
        ),
    )


def build_muzero(config: MuZeroConfig, spec: EnvSpec, network: NetworkConfig) -> MuZero:
    """Returns networks, optimizer and schedules; raises UserError as `make_muzero` does."""
    actions, total = make_search_actions(spec, config.num_proposals), config.total_updates
    net = make_muzero_network(
        network,
        spec,
        latent_size=config.latent_size,
        num_parameters=actions.num_parameters,
        num_features=actions.num_features,
        num_atoms=num_atoms(config.value_limit),
        prefix_steps=config.unroll_steps if config.value_prefix else 0,
    )
    compared = make_consistency_network(config.latent_size, config.projection_size) if config.consistency_coef else None
    learning_rate = make_schedule(config.learning_rate_schedule, config.learning_rate, total)
    return MuZero(
        config,
        net,
        compared,
        actions,
        make_search(net, actions, config.discount, config.search, config.gumbel, config.puct),
        make_optimizer(config.optimizer, learning_rate),
        learning_rate,
        make_schedule(config.temperature_schedule, config.temperature, total),
        importance_exponent_schedule(config.replay, config.importance_sampling_exponent, total),
    )


def init(muzero: MuZero, key: Array) -> LearnerState:
    """Returns the initial learner state; the target network is a copy of the network. `key` is consumed."""
    network, zero = muzero.net.init(key), jnp.zeros((), jnp.int32)
    if muzero.consistency is not None:
        network = {**network, "consistency": muzero.consistency.init(jax.random.fold_in(key, 1))}
    state = LearnerState({"network": network}, muzero.optimizer.init(network), zero, init_target(network))
    return sync_scheduled("temperature", muzero.temperature, state)


def act(
    muzero: MuZero,
    params: Params,
    observation: Observation,
    agent_state: AgentState,
    is_first: Array,
    keys: Array,
    mode: Mode,
) -> tuple[Action, dict[str, Array], AgentState]:
    """Returns the actions [B, ...] of a search from each observation; greedy mode searches and chooses without noise."""
    del is_first
    temperature = params["temperature"] if mode is Mode.SAMPLE else None
    result, choices = muzero.search(params["network"], observation, keys, temperature)
    return muzero.actions.take(choices, result.action), recorded_search(result, choices), agent_state


def update(muzero: MuZero, state: LearnerState, sample: Sample, key: Array) -> tuple[LearnerState, Metrics, Array]:
    """Returns the state after one gradient step, metrics, and the windows' priorities. `key` is consumed.

    Beyond the end of an episode the model is unrolled with random actions: a terminal state absorbs all of them.
    """
    window = sample.trajectory
    targets = value_targets(muzero, state.extra.target, window, state.num_updates)
    window = absorbing_actions(muzero.actions, window, targets.acted, key)
    importance = importance_weights(sample.probability, targets.known[0], muzero.beta(state.num_updates))
    gradient = jax.grad(partial(loss, muzero), has_aux=True)
    grads, (metrics, priority) = gradient(state.params["network"], window, targets, importance)
    metrics |= current_values({"learning_rate": muzero.learning_rate}, state.num_updates)
    metrics["gradient/norm"] = optax.tree.norm(grads)
    state = descend_with_target(muzero.optimizer, grads, state, muzero.config.target_update_period)
    return state, metrics, priority


def value_targets(muzero: MuZero, target: Params, window: Trajectory, num_updates: Array) -> UnrolledTargets:
    """Returns the targets of K + 1 states, with bootstrap values of the target network and shorter returns of old windows."""
    config, net = muzero.config, muzero.net
    n, fraction, age = config.n_step, config.n_step_decay_fraction, num_updates - window.policy_version[0]
    bootstrap = two_hot_mean(net.predict(target, net.represent(target, window.observation)).value)
    return unrolled_targets(
        window,
        bootstrap,
        unroll_steps=config.unroll_steps,
        n_step=n,
        discount=config.discount,
        shortened=None if fraction is None else shortened_returns(age, n, fraction, config.total_updates),
    )


def loss(
    muzero: MuZero, params: Params, window: Trajectory, targets: UnrolledTargets, importance: Array
) -> tuple[Array, tuple[Metrics, Array]]:
    """Returns the mean weighted loss of the model unrolled for K steps, metrics, and the priorities [N].

    The losses of unrolled states are divided by K, and the gradient into each step of the model is halved (appendix G).
    """
    config, net = muzero.config, muzero.net
    limit, depth = config.value_limit, config.unroll_steps
    first, actions = jax.tree.map(lambda leaf: leaf[0], window.observation), muzero.actions.features(window.action)
    state = net.represent(params, first)
    rewards = jnp.cumsum(targets.reward, axis=0) if config.value_prefix else targets.reward
    losses = {name: jnp.zeros_like(importance) for name in ("reward", "value", "policy")}
    first_value, states = losses["value"], []
    for k in range(depth + 1):
        share = 1.0 if k == 0 else 1.0 / depth
        prediction = net.predict(params, state)
        value_loss = cross_entropy(prediction.value, two_hot(targets.value[k], limit))
        losses["value"] += share * targets.known[k] * value_loss
        losses["policy"] += share * targets.acted[k] * policy_loss(muzero, prediction.policy, window.extras, k)
        if k == 0:
            first_value = jax.lax.stop_gradient(two_hot_mean(prediction.value))
        if k < depth:
            state, reward = net.advance(params, halve_gradient(state), actions[k])
            losses["reward"] += targets.known[k] / depth * cross_entropy(reward, two_hot(rewards[k], limit))
            states.append(latent_of(state))
    total = losses["policy"] + config.value_coef * losses["value"] + config.reward_coef * losses["reward"]
    if muzero.consistency is not None:
        losses["consistency"] = unrolled_consistency(
            muzero.consistency, net, params, window.observation, jnp.stack(states), targets.acted[1:]
        )
        total += config.consistency_coef * losses["consistency"]
    mean = partial(weighted_mean, weight=targets.known[0])
    priority = jnp.abs(first_value - targets.value[0]) * targets.known[0]
    metrics = {f"loss/{name}": mean(part) for name, part in losses.items()}
    metrics["loss/total"] = mean(total * importance)
    metrics |= {
        "value/mean": mean(first_value),
        "value/target": mean(targets.value[0]),
        "value/clamped_fraction": clamped_fraction(targets._replace(reward=rewards), limit),
        "replay/priority": mean(priority),
    }
    return metrics["loss/total"], (metrics, priority)


def policy_loss(muzero: MuZero, policy: Array, extras: dict[str, Array], k: int) -> Array:
    """Returns [N], the cross-entropy of the policy's outputs [N, P] to the search's policy at step k of the windows."""
    choices = {name: extras[name][k] for name in muzero.actions.extras}
    return -jnp.sum(extras["search_policy"][k] * muzero.actions.log_probs(policy, choices), axis=-1)


def reanalyze(muzero: MuZero, params: Params, extra: TargetNetwork, sample: Sample, key: Array) -> Sample:
    """Returns the sample with new search policies in a share of its windows, by the target network (appendix H).

    The windows are chosen at random: those of a dataset are the last of a mixed sample.
    """
    del params
    window, num_states = sample.trajectory, muzero.config.unroll_steps + 1
    num_windows = sample.probability.shape[0]
    num_chosen = max(1, round(muzero.config.reanalyze_fraction * num_windows))
    choice_key, search_key = jax.random.split(key)
    chosen = jax.random.permutation(choice_key, num_windows)[:num_chosen]
    extras = search_again(muzero.search, extra.target, window, num_states, chosen, search_key)
    return dataclasses.replace(sample, trajectory=dataclasses.replace(window, extras=extras))
