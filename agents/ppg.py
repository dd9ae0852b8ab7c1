"""Phasic policy gradient as pure functions. Source: Cobbe et al. 2021 (arXiv:2009.04416), algorithm 1 and equations of section 2.

Every update is a policy phase: PPO's losses, with policy and value on torsos of their own. Every `num_policy_phases`-th update then
has an auxiliary phase over all trajectories since the last one. `LearnerState.extra` keeps their observations and value targets.
`docs/algorithms/ppg.md` lists what deviates from the paper, and the memory that the kept trajectories take.
"""

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from agents.api import Agent, Array, LearnerState, Metrics, Observation, Params, Progress, Trajectory
from agents.binding import keeps_binding
from agents.networks.config import NetworkConfig
from agents.networks.observation_scale import normalized_spec
from agents.networks.phasic import Phasic, make_phasic
from agents.ops import returns, validate
from agents.ops.gradient_steps import init_progress, take_step
from agents.ops.minibatches import (
    Axis,
    shuffled_minibatches,
    shuffled_row_minibatches,
    take_rows,
    take_steps,
    validate_minibatches,
    validate_standardized,
)
from agents.ops.optimizers import OptimizerConfig, make_optimizer
from agents.ops.phase_memory import PhaseMemory, init_phase_memory, store_trajectory
from agents.ops.policy_gradient import SurrogateCoefficients, clipped_surrogate_loss
from agents.ops.rare_branch import run_if
from agents.ops.schedules import (
    CONSTANT,
    ScheduleConfig,
    Schedules,
    current_values,
    init_factors,
    make_schedule,
    make_schedules,
)
from agents.ops.value_distributions import huber
from agents.settings import complete
from agents.transforms.normalization import NormalizationConfig
from agents.transforms.on_policy_agent import make_on_policy_agent
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import EnvSpec

_AUXILIARY_METRICS = ("auxiliary/distillation", "auxiliary/clone_kl", "auxiliary/value", "auxiliary/gradient/norm")
Optimizers = Mapping[str, optax.GradientTransformation]
"""Those of the phases "policy" and "auxiliary"."""


@dataclasses.dataclass(frozen=True)
class PPGConfig:
    """Hyper-parameters; defaults of the paper's Procgen experiments (appendix A), except that rewards are not scaled.

    Attributes:
        learning_rate: Initial learning rate in the policy phase.
        learning_rate_schedule: Change of both learning rates over the run.
        total_updates: Updates of the whole run, for schedules.
        rollout_length: T of the trajectories that are kept: `run.rollout_length`.
        num_rows: B of the trajectories that are kept: `run.num_envs`.
        discount: g.
        gae_lambda: lambda of GAE.
        clip_epsilon: Largest distance from 1 at which the probability ratio counts, initially.
        clip_epsilon_schedule: Change of that distance over the run.
        value_coef: Weight of the value error in the policy phase.
        value_huber_delta: Value error beyond which its loss is linear, in both phases, in reward units; None: squared everywhere.
        entropy_coef: Initial weight of the entropy bonus.
        entropy_coef_schedule: Change of that weight over the run.
        optimizer: Settings of the optimizers of both phases.
        num_epochs: Passes over a trajectory in the policy phase, for policy and value: the paper's E_pi and E_V, both 1.
        num_minibatches: Gradient steps of such a pass; divides T, or B.
        minibatch_axis: Minibatches of the policy phase are steps of "time" of all rows, or all steps of some "rows"; those of the
            auxiliary phase are always steps of time.
        normalize_advantage: Whether advantages are standardized in each minibatch.
        num_policy_phases: Updates from one auxiliary phase to the next.
        num_auxiliary_epochs: Passes of an auxiliary phase over all trajectories since the last one.
        num_auxiliary_minibatches: Gradient steps of such a pass for each trajectory; divides T.
        auxiliary_learning_rate: Initial learning rate in the auxiliary phase.
        clone_coef: Weight of KL(old policy || policy) in the auxiliary phase.
        normalization: Observations and rewards by running statistics; off by default, while the paper scales rewards.
    """

    learning_rate: float = 5e-4
    learning_rate_schedule: ScheduleConfig = CONSTANT
    total_updates: int = 0
    rollout_length: int = 32
    num_rows: int = 128
    discount: float = 0.999
    gae_lambda: float = 0.95
    clip_epsilon: float = 0.2
    clip_epsilon_schedule: ScheduleConfig = CONSTANT
    value_coef: float = 0.5
    value_huber_delta: float | None = None
    entropy_coef: float = 0.01
    entropy_coef_schedule: ScheduleConfig = CONSTANT
    optimizer: OptimizerConfig = OptimizerConfig(max_grad_norm=0.5)
    num_epochs: int = 1
    num_minibatches: int = 8
    minibatch_axis: Axis = "time"
    normalize_advantage: bool = True
    num_policy_phases: int = 32
    num_auxiliary_epochs: int = 6
    num_auxiliary_minibatches: int = 16
    auxiliary_learning_rate: float = 5e-4
    clone_coef: float = 1.0
    normalization: NormalizationConfig = dataclasses.field(default_factory=NormalizationConfig)

    def __post_init__(self) -> None:
        complete(self)
        validate.at_least_one(self, "num_epochs", "num_minibatches", "num_policy_phases", "num_auxiliary_epochs")
        validate.at_least_one(self, "num_auxiliary_minibatches", "rollout_length", "num_rows")
        validate.fraction(self, "discount", "gae_lambda")
        validate.positive(self, "learning_rate", "auxiliary_learning_rate", "clip_epsilon", "value_huber_delta")
        validate.not_negative(self, "clone_coef", "value_coef", "entropy_coef")
        validate.choices(self)

    @property
    def num_gradient_steps(self) -> int:
        """Gradient steps of one policy phase."""
        return self.num_epochs * self.num_minibatches

    @property
    def num_auxiliary_steps(self) -> int:
        """Gradient steps of one auxiliary phase."""
        return self.num_auxiliary_epochs * self.num_policy_phases * self.num_auxiliary_minibatches


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PolicyBatch:
    """Inputs of the policy phase's loss; [T, B, ...] each leaf, `weight` 0 where the step only reset."""

    observation: Observation
    action: Any
    behavior_log_prob: Array
    advantage: Array
    target_value: Array
    weight: Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class AuxiliaryBatch:
    """Inputs of the auxiliary phase's loss; [N T, B, ...] each leaf.

    Attributes:
        observation: Observation, as in `PhaseMemory`.
        old_policy: [N T, B, P], the policy's parameters at the start of the phase.
        target_value: Target value, as in `PhaseMemory`.
        weight: [N T, B] float32, 0 where the step only reset.
    """

    observation: Observation
    old_policy: Array
    target_value: Array
    weight: Array


@keeps_binding
def make_ppg(config: PPGConfig, spec: EnvSpec, network: NetworkConfig) -> Agent:
    """Returns PPG for this environment and network.

    It does not run under the plan `central`: the number of its gradient steps is not the same in every update.

    Raises:
        UserError: Environment and network do not fit, the network has a memory or a shared torso, or minibatches do not divide
            the run's trajectories, or have one step and standardized advantages.
    """
    if config.rollout_length % config.num_auxiliary_minibatches:
        raise UserError(
            f"num_auxiliary_minibatches must divide rollout_length: got {config.num_auxiliary_minibatches} and "
            f"{config.rollout_length}; minibatches of the auxiliary phase are cut along time"
        )
    validate_minibatches(config.minibatch_axis, config.num_minibatches, config.rollout_length, config.num_rows)
    if config.normalize_advantage:
        validate_standardized(config.num_minibatches, config.rollout_length, config.num_rows)
    spec = normalized_spec(spec, config.normalization.observations)
    phasic = make_phasic(network, spec)
    schedules = make_schedules(config, "learning_rate", "clip_epsilon", "entropy_coef")
    rate = make_schedule(config.learning_rate_schedule, config.auxiliary_learning_rate, config.total_updates)
    rates = {"policy": schedules["learning_rate"], "auxiliary": rate}
    optimizers = {name: make_optimizer(config.optimizer, rate) for name, rate in rates.items()}
    init_fn = partial(init, config, spec, phasic, optimizers)
    update_fn = partial(update, config, phasic, optimizers, schedules)
    return make_on_policy_agent("ppg", config, spec, phasic.net, init_fn, update_fn, None)


def init(config: PPGConfig, spec: EnvSpec, phasic: Phasic, optimizers: Optimizers, key: Array) -> LearnerState:
    """Returns the first learner state, with room for the trajectories of all policy phases. `key` is consumed."""
    params = phasic.net.init(key)
    opt_state = {name: optimizer.init(params) for name, optimizer in optimizers.items()}
    memory = init_phase_memory(
        spec, config.num_policy_phases, config.rollout_length, config.num_rows, _AUXILIARY_METRICS
    )
    extra = {"memory": memory, **init_factors("entropy_coef")}
    return LearnerState(params, opt_state, jnp.zeros((), jnp.int32), extra)


def update(
    config: PPGConfig,
    phasic: Phasic,
    optimizers: Optimizers,
    schedules: Schedules,
    state: LearnerState,
    batch: Trajectory,
    key: Array,
) -> tuple[LearnerState, Metrics]:
    """Runs a policy phase, and after every `num_policy_phases`-th one an auxiliary phase. `key` is consumed.

    Raises:
        UserError: If the trajectory has other sizes than the memory.
    """
    _validate_sizes(config, batch)
    policy_key, auxiliary_key = jax.random.split(key)
    steps = make_batch(config, phasic, state.params, batch)
    order = policy_minibatches(config, policy_key)
    entropy_coef = schedules["entropy_coef"](state.num_updates) * state.extra["entropy_coef_factor"]
    now = SurrogateCoefficients(schedules["clip_epsilon"](state.num_updates), entropy_coef)
    start = dataclasses.replace(init_progress(state), opt_state=state.opt_state["policy"])
    loss = partial(policy_loss, config, phasic, now)
    take = partial(take_rows, num_minibatches=config.num_minibatches) if config.minibatch_axis == "rows" else take_steps
    progress, metrics = _descend(loss, optimizers["policy"], start, partial(take, steps), order)
    memory = store_trajectory(
        state.extra["memory"], steps.observation, steps.target_value, batch.valid, state.num_updates
    )

    def run_auxiliary_phase(
        before: tuple[Progress, Metrics], memory: PhaseMemory, key: Array
    ) -> tuple[Progress, Metrics]:
        return auxiliary_phase(config, phasic, optimizers["auxiliary"], before[0], memory, key)

    before = dataclasses.replace(progress, opt_state=state.opt_state["auxiliary"]), memory.metrics
    is_last = state.num_updates % config.num_policy_phases == config.num_policy_phases - 1
    auxiliary, auxiliary_metrics = run_if(is_last, run_auxiliary_phase, before, memory, auxiliary_key)
    metrics |= current_values(schedules, state.num_updates)
    opt_state = {"policy": progress.opt_state, "auxiliary": auxiliary.opt_state}
    extra = {**state.extra, "memory": dataclasses.replace(memory, metrics=auxiliary_metrics)}
    return LearnerState(auxiliary.params, opt_state, state.num_updates + 1, extra), metrics | auxiliary_metrics


def make_batch(config: PPGConfig, phasic: Phasic, params: Params, trajectory: Trajectory) -> PolicyBatch:
    """Returns advantages and value targets of a trajectory, by the value's own torso under the newest parameters."""
    _, value, _ = phasic.net.unroll(
        params, trajectory.observation, trajectory.agent_state, trajectory.is_first
    )  # [T+1, B]
    ends = (trajectory.terminated, trajectory.truncated, trajectory.valid)
    advantage = returns.gae(trajectory.reward, value, *ends, discount=config.discount, lambda_=config.gae_lambda)
    return PolicyBatch(
        observation=jax.tree.map(lambda leaf: leaf[:-1], trajectory.observation),
        action=trajectory.action,
        behavior_log_prob=trajectory.extras["behavior_log_prob"],
        advantage=advantage,
        target_value=advantage + value[:-1],
        weight=trajectory.valid.astype(value.dtype),
    )


def policy_minibatches(config: PPGConfig, key: Array) -> Array:
    """Returns the minibatches of a policy phase, as `shuffled_minibatches` or `shuffled_row_minibatches` does. Consumes `key`."""
    if config.minibatch_axis == "rows":
        return shuffled_row_minibatches(key, config.num_rows, config.num_epochs, config.num_minibatches)
    return shuffled_minibatches(key, config.rollout_length, config.num_epochs, config.num_minibatches)


def policy_loss(
    config: PPGConfig, phasic: Phasic, now: SurrogateCoefficients, params: Params, batch: PolicyBatch
) -> tuple[Array, Metrics]:
    """Returns clipped surrogate + value error - entropy bonus, and metrics; steps of weight 0 do not count."""
    parameters, value, _ = phasic.outputs(params, batch.observation)
    distribution, mean = phasic.net.distribution, partial(returns.weighted_mean, weight=batch.weight)
    advantage = batch.advantage
    if config.normalize_advantage:
        advantage = returns.standardize(advantage, batch.weight)
    log_prob = distribution.log_prob(parameters, batch.action)
    policy, metrics = clipped_surrogate_loss(
        log_prob, batch.behavior_log_prob, advantage, batch.weight, now.clip_epsilon
    )
    value_error = mean(huber(value - batch.target_value, config.value_huber_delta))
    entropy = mean(distribution.entropy(parameters))
    total = policy + config.value_coef * value_error - now.entropy * entropy
    return total, metrics | {"loss/total": total, "loss/value": value_error, "policy/entropy": entropy}


def auxiliary_phase(
    config: PPGConfig,
    phasic: Phasic,
    optimizer: optax.GradientTransformation,
    progress: Progress,
    memory: PhaseMemory,
    key: Array,
) -> tuple[Progress, Metrics]:
    """Takes `num_auxiliary_steps` gradient steps; returns the progress and the mean of their metrics. `key` is consumed."""
    batch = AuxiliaryBatch(
        observation=memory.observation,
        old_policy=_policies(config, phasic, progress.params, memory.observation),
        target_value=memory.target_value,
        weight=memory.valid.astype(jnp.float32),
    )
    num_minibatches = config.num_policy_phases * config.num_auxiliary_minibatches
    order = shuffled_minibatches(key, memory.valid.shape[0], config.num_auxiliary_epochs, num_minibatches)
    loss = partial(auxiliary_loss, config, phasic)
    return _descend(loss, optimizer, progress, partial(take_steps, batch), order, "auxiliary/")


def auxiliary_loss(config: PPGConfig, phasic: Phasic, params: Params, batch: AuxiliaryBatch) -> tuple[Array, Metrics]:
    """Returns error of the auxiliary value + clone_coef KL(old policy || policy) + error of the value, and metrics.

    Steps of weight 0 do not count.
    """
    outputs, mean = phasic.outputs(params, batch.observation), partial(returns.weighted_mean, weight=batch.weight)
    error = partial(huber, delta=config.value_huber_delta)
    distillation = mean(error(outputs.auxiliary - batch.target_value))
    clone = mean(phasic.divergence(batch.old_policy, outputs.policy))
    value = mean(error(outputs.value - batch.target_value))
    total = distillation + config.clone_coef * clone + value
    return total, {"auxiliary/distillation": distillation, "auxiliary/clone_kl": clone, "auxiliary/value": value}


def _descend(
    loss: Callable[[Params, Any], tuple[Array, Metrics]],
    optimizer: optax.GradientTransformation,
    progress: Progress,
    take: Callable[[Array], Any],
    order: Array,
    prefix: str = "",
) -> tuple[Progress, Metrics]:
    """Takes a gradient step for each row of `order`, [steps, minibatch length] int32, on the minibatch that `take` makes of it.

    Returns the progress and the mean of the metrics. `prefix` is that of the metric `gradient/norm`.
    """

    def step(progress: Progress, chosen: Array) -> tuple[Progress, Metrics]:
        grads, metrics = jax.grad(loss, has_aux=True)(progress.params, take(chosen))
        return take_step(optimizer, progress, grads), metrics | {f"{prefix}gradient/norm": optax.tree.norm(grads)}

    progress, metrics = jax.lax.scan(step, progress, order)
    return progress, jax.tree.map(jnp.mean, metrics)


def _policies(config: PPGConfig, phasic: Phasic, params: Params, observation: Observation) -> Array:
    """Returns [N T, B, P] of all that is kept.

    One trajectory at a time: activations of all of them at once would take N times the memory.
    """
    by_phase = jax.tree.map(
        lambda leaf: leaf.reshape(config.num_policy_phases, config.rollout_length, *leaf.shape[1:]), observation
    )
    policies = jax.lax.map(lambda steps: phasic.outputs(params, steps).policy, by_phase)
    return policies.reshape(-1, *policies.shape[2:])


def _validate_sizes(config: PPGConfig, batch: Trajectory) -> None:
    steps, rows = batch.reward.shape
    if (steps, rows) != (config.rollout_length, config.num_rows):
        raise UserError(
            f"PPG keeps trajectories of rollout_length x num_rows = {config.rollout_length} x {config.num_rows} steps, got one "
            f"of {steps} x {rows}: set agent.rollout_length={steps} and agent.num_rows={rows}"
        )
