"""Phasic policy gradient as pure functions. Source: Cobbe et al. 2021 (arXiv:2009.04416), algorithm 1 and equations of section 2.

Every update is a policy phase: PPO's losses, policy and value on torsos of their own. Every `num_policy_phases`-th update then has
an auxiliary phase over all trajectories since the last one. Their observations and value targets are kept in `LearnerState.extra`.
`docs/algorithms/ppg.md` lists what deviates from the paper, and what the kept trajectories cost.
"""

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from agents.api import Agent, Array, LearnerState, Metrics, Observation, Params, Progress, Trajectory
from agents.networks.config import NetworkConfig
from agents.networks.phasic import Phasic, make_phasic
from agents.ops import returns, schedules
from agents.ops.gradient_steps import first_progress
from agents.ops.policy_gradient import clipped_adam, clipped_policy_loss
from agents.ppg_auxiliary import auxiliary_phase, descend, empty_memory, remember, time_order
from agents.ppg_config import PPGConfig
from agents.transforms.on_policy_agent import make_on_policy_agent
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import EnvSpec

__all__ = ["PPGConfig", "PolicyBatch", "init", "make_batch", "make_ppg", "policy_loss", "update"]

_POLICY, _AUXILIARY = "policy", "auxiliary"


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PolicyBatch:
    """What the policy phase needs of each step; [T, B, ...] each leaf, `weight` 0 where the step only reset."""

    observation: Observation
    action: Any
    behaviour_log_prob: Array
    advantage: Array
    target_value: Array
    weight: Array


def make_ppg(config: PPGConfig, spec: EnvSpec, network: NetworkConfig) -> Agent:
    """PPG for this environment and network. Its update cannot be cut into gradient steps: their number is not always the same.

    Raises:
        UserError: they do not fit, or the network is to remember or to share its torso.
    """
    phasic = make_phasic(network, spec)
    initial = {_POLICY: config.learning_rate, _AUXILIARY: config.auxiliary_learning_rate}
    rates = {
        name: schedules.make_schedule(config.learning_rate_schedule, rate, config.total_updates)
        for name, rate in initial.items()
    }
    optimizers = {name: clipped_adam(rate, config.max_grad_norm, config.adam_epsilon) for name, rate in rates.items()}
    begin = partial(init, config, spec, phasic, optimizers)
    return make_on_policy_agent(
        "ppg", config, spec, phasic.net, begin, partial(update, config, phasic, optimizers, rates[_POLICY])
    )


def init(
    config: PPGConfig, spec: EnvSpec, phasic: Phasic, optimizers: Mapping[str, optax.GradientTransformation], key: Array
) -> LearnerState:
    """First learner state, with room for the trajectories of all policy phases. `key` is consumed."""
    params = phasic.net.init(key)
    opt_state = {name: optimizer.init(params) for name, optimizer in optimizers.items()}
    return LearnerState(params, opt_state, jnp.zeros((), jnp.int32), empty_memory(config, spec))


def update(
    config: PPGConfig,
    phasic: Phasic,
    optimizers: Mapping[str, optax.GradientTransformation],
    rate: optax.Schedule,
    state: LearnerState,
    batch: Trajectory,
    key: Array,
) -> tuple[LearnerState, Metrics]:
    """A policy phase, and after every `num_policy_phases`-th one an auxiliary phase. `key` is consumed.

    Raises:
        UserError: the trajectory has other sizes than there is room for.
    """
    require_sizes(config, batch)
    policy_key, auxiliary_key = jax.random.split(key)
    steps = make_batch(config, phasic, state.params, batch)
    order = time_order(policy_key, config.rollout_length, config.num_epochs, config.num_minibatches)
    loss = partial(policy_loss, config, phasic)
    begin = dataclasses.replace(first_progress(state), opt_state=state.opt_state[_POLICY])
    progress, metrics = descend(loss, optimizers[_POLICY], begin, steps, order)
    place = state.num_updates % config.num_policy_phases
    memory = remember(state.extra, steps.observation, steps.target_value, batch.valid, place)

    def after(progress: Progress, _: Metrics) -> tuple[Progress, Metrics]:
        return auxiliary_phase(config, phasic, optimizers[_AUXILIARY], progress, memory, auxiliary_key)

    auxiliary, found = jax.lax.cond(
        place == config.num_policy_phases - 1,
        after,
        lambda *before: before,
        *(dataclasses.replace(progress, opt_state=state.opt_state[_AUXILIARY]), memory.metrics),
    )
    metrics["learning_rate"] = jnp.asarray(rate(state.num_updates), jnp.float32)
    opt_state = {_POLICY: progress.opt_state, _AUXILIARY: auxiliary.opt_state}
    memory = dataclasses.replace(memory, metrics=found)
    return LearnerState(auxiliary.params, opt_state, state.num_updates + 1, memory), metrics | found


def require_sizes(config: PPGConfig, batch: Trajectory) -> None:
    """Refuses trajectories that there is no room for.

    Raises:
        UserError: says which settings would do.
    """
    steps, rows = batch.reward.shape
    if (steps, rows) != (config.rollout_length, config.num_rows):
        raise UserError(
            f"PPG keeps trajectories of rollout_length x num_rows = {config.rollout_length} x {config.num_rows} steps, got one "
            f"of {steps} x {rows}: set agent.rollout_length={steps} and agent.num_rows={rows}"
        )


def make_batch(config: PPGConfig, phasic: Phasic, params: Params, trajectory: Trajectory) -> PolicyBatch:
    """Advantages and value targets of a trajectory, by the value's own torso under the newest parameters."""
    _, value, _ = phasic.net.unroll(
        params, trajectory.observation, trajectory.agent_state, trajectory.is_first
    )  # [T+1, B]
    ends = (trajectory.terminated, trajectory.truncated, trajectory.valid)
    advantage = returns.gae(trajectory.reward, value, *ends, discount=config.discount, lambda_=config.gae_lambda)
    return PolicyBatch(
        observation=jax.tree.map(lambda leaf: leaf[:-1], trajectory.observation),
        action=trajectory.action,
        behaviour_log_prob=trajectory.extras["behaviour_log_prob"],
        advantage=advantage,
        target_value=advantage + value[:-1],
        weight=trajectory.valid.astype(value.dtype),
    )


def policy_loss(config: PPGConfig, phasic: Phasic, params: Params, batch: PolicyBatch) -> tuple[Array, Metrics]:
    """Clipped surrogate + value error - entropy bonus; steps of weight 0 do not count."""
    parameters, value, _ = phasic.outputs(params, batch.observation)
    distribution, mean = phasic.net.distribution, partial(returns.weighted_mean, weight=batch.weight)
    policy, metrics = clipped_policy_loss(config, distribution.log_prob(parameters, batch.action), batch)
    value_error = 0.5 * mean(jnp.square(value - batch.target_value))
    entropy = mean(distribution.entropy(parameters))
    total = policy + config.value_coef * value_error - config.entropy_coef * entropy
    return total, metrics | {"loss/total": total, "loss/value": value_error, "policy/entropy": entropy}
