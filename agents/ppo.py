"""PPO-clip as pure functions. Source: Schulman et al. 2017 (arXiv:1707.06347), eq. 7 and 9.

`docs/algorithms/ppo.md` lists every detail that the paper leaves open, and what is chosen here.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from agents.api import (
    Action,
    Agent,
    AgentState,
    Array,
    GradientSteps,
    LearnerState,
    Metrics,
    Observation,
    Params,
    Progress,
    Summary,
    Trajectory,
)
from agents.networks import chunked_unroll
from agents.networks.actor_critic import ActorCritic
from agents.networks.config import NetworkConfig
from agents.networks.custom import bound_network
from agents.ops import popart, returns, schedules
from agents.ops.gradient_steps import make_apply
from agents.ops.policy_gradient import clipped_adam, clipped_policy_loss
from agents.ops.value_targets import ValueTargets, make_targets
from agents.ppo_config import PPOConfig
from agents.transforms.on_policy_agent import make_on_policy_agent
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import EnvSpec

__all__ = ["PPOConfig", "make_ppo"]

_TARGETS, _VERSION, _POPART = "popart/targets", "version", "popart"


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Batch:
    """What the loss needs of each step; [T, B, ...] each leaf.

    Attributes:
        observation: what was acted on.
        action: what was done.
        behaviour_log_prob: its log-probability, nats, when it was done.
        old_value: as the network says it, before the update.
        advantage: reward units.
        target_value: in the units of the network's output: reward units, or normalised.
        weight: 0 where the step only reset, or is too stale.
        is_first: whether the observation begins an episode.
        agent_state: what a network with memory begins with: [C, B, ...] each for C chunks of a trajectory (see
            `agents.networks.chunked_unroll`), [B, ...] each in the loss.
    """

    observation: Observation
    action: Action
    behaviour_log_prob: Array
    old_value: Array
    advantage: Array
    target_value: Array
    weight: Array
    is_first: Array
    agent_state: AgentState = ()


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Prepared:
    """A trajectory ready for its gradients.

    Attributes:
        batch: [T, B, ...] each.
        order: [num_gradient_steps, T / num_minibatches] int32, the steps of time in each minibatch; of a network with memory,
            [num_gradient_steps, C / num_minibatches] the chunks.
    """

    batch: Batch
    order: Array


def make_ppo(config: PPOConfig, spec: EnvSpec, network: NetworkConfig | ActorCritic) -> Agent:
    """PPO for this environment and network (or one of your own: `memoryless_network`). Raises UserError where they do not fit."""
    net = bound_network(network, spec)
    schedule = schedules.make_schedule(config.learning_rate_schedule, config.learning_rate, config.total_updates)
    optimizer = clipped_adam(schedule, config.max_grad_norm, config.adam_epsilon)
    steps = GradientSteps(
        num_steps=config.num_gradient_steps,
        prepare=partial(prepare, config, net),
        gradient=partial(gradient, config, net),
        apply=make_apply(optimizer, _kl_stop(config)),
        finish=partial(finish, config, schedule),
    )
    begin = partial(init, config, net, optimizer)
    return make_on_policy_agent("ppo", config, spec, net, begin, steps, config.reward_clip)


def init(config: PPOConfig, net: ActorCritic, optimizer: optax.GradientTransformation, key: Array) -> LearnerState:
    """First learner state. `key` is consumed."""
    params = net.init(key)
    extra: dict[str, Any] = {}
    if config.value_normalisation == "popart":
        popart.value_layer(params)  # refuses a network that has none where it should be
    if config.value_normalisation != "none":
        extra[_POPART] = popart.init()
    if config.max_staleness is not None:
        extra[_VERSION] = jnp.zeros((), jnp.int32)
    return LearnerState(params, optimizer.init(params), jnp.zeros((), jnp.int32), extra or ())


def make_batch(
    config: PPOConfig, net: ActorCritic, params: Params, trajectory: Trajectory, extra: Any = ()
) -> tuple[Batch, ValueTargets]:
    """What the loss needs of a trajectory under the newest parameters; and its targets in reward units."""
    parameters, value, states = _unrolled(config, net, params, trajectory)
    log_ratio = net.distribution.log_prob(parameters, trajectory.action) - trajectory.extras["behaviour_log_prob"]
    normalises = config.value_normalisation != "none"
    in_reward_units = popart.denormalise(extra[_POPART], value) if normalises else value
    targets = make_targets(config, trajectory, in_reward_units, log_ratio)
    weight = trajectory.valid
    if config.max_staleness is not None:
        weight &= extra[_VERSION] - trajectory.policy_version <= config.max_staleness
    batch = Batch(
        observation=jax.tree.map(lambda leaf: leaf[:-1], trajectory.observation),
        action=trajectory.action,
        behaviour_log_prob=trajectory.extras["behaviour_log_prob"],
        old_value=value[:-1],
        advantage=targets.advantage,
        target_value=popart.normalise(extra[_POPART], targets.target) if normalises else targets.target,
        weight=weight.astype(value.dtype),
        is_first=trajectory.is_first[:-1],
        agent_state=states,
    )
    return batch, targets


def _unrolled(
    config: PPOConfig, net: ActorCritic, params: Params, trajectory: Trajectory
) -> tuple[Array, Array, AgentState]:
    """Policy parameters [T, B, P], values [T+1, B], and the states of chunks."""
    observation, is_first = trajectory.observation, trajectory.is_first
    if not net.remembers:
        parameters, value, _ = net.unroll(params, observation, (), is_first)
        return parameters[:-1], value, ()
    sizes = _chunk_sizes(config, is_first.shape[0] - 1)
    return chunked_unroll.unroll_in_chunks(net, params, observation, is_first, trajectory.agent_state, sizes)


def _chunk_sizes(config: PPOConfig, num_steps: int) -> chunked_unroll.ChunkSizes:
    return chunked_unroll.ChunkSizes(config.chunk_length or num_steps, config.burn_in)


def loss(config: PPOConfig, net: ActorCritic, params: Params, batch: Batch) -> tuple[Array, Metrics]:
    """Clipped surrogate + value error - entropy bonus; steps of weight 0 do not count."""
    parameters, value, _ = net.unroll(params, batch.observation, batch.agent_state, batch.is_first)
    mean = partial(returns.weighted_mean, weight=batch.weight)
    log_prob = net.distribution.log_prob(parameters, batch.action)
    policy, metrics = clipped_policy_loss(config, log_prob, batch, config.dual_clip)
    value_error = 0.5 * mean(_squared_value_error(config, value, batch))
    entropy = mean(net.distribution.entropy(parameters))
    total = policy + config.value_coef * value_error - config.entropy_coef * entropy
    return total, metrics | {"loss/total": total, "loss/value": value_error, "policy/entropy": entropy}


def prepare(
    config: PPOConfig, net: ActorCritic, params: Params, extra: Any, batch: Trajectory, key: Array
) -> tuple[Prepared, Summary]:
    """Advantages, targets and the minibatches of all epochs. `key` is consumed.

    Raises:
        UserError: `num_minibatches` does not divide T, or the number of chunks.
    """
    steps, targets = make_batch(config, net, params, batch, extra)
    length, what = steps.weight.shape[0], "rollout_length"
    if net.remembers:
        length, what = length // _chunk_sizes(config, length).length, "rollout_length / chunk_length"
    order = minibatch_order(config, length, key, what)
    explained = returns.explained_variance(steps.target_value, steps.old_value, steps.weight)
    summary: Summary = {"value/explained_variance": explained}
    if config.max_staleness is not None:
        fresh = jnp.sum(steps.weight) / jnp.maximum(jnp.sum(batch.valid), 1)
        summary["batch/stale_fraction"] = 1.0 - fresh
    if config.value_normalisation != "none":
        summary[_TARGETS] = popart.target_moments(targets.target, steps.weight)
    return Prepared(steps, order), summary


def minibatch_order(config: PPOConfig, length: int, key: Array, what: str = "rollout_length") -> Array:
    """[num_gradient_steps, length / num_minibatches] int32: each epoch's permutation of time, cut. `key` is consumed.

    `length` is T, or the number of chunks of a network with memory: `what` names it.

    Only T is permuted and cut: B, which may be sharded over devices, stays where it is, so nothing is gathered.

    Raises:
        UserError: `num_minibatches` does not divide `length`.
    """
    if length % config.num_minibatches:
        raise UserError(
            f"num_minibatches must divide {what}: got {config.num_minibatches} and {length}; "
            "minibatches are cut along time"
        )
    keys = jax.random.split(key, config.num_epochs)
    order = jax.vmap(lambda epoch_key: jax.random.permutation(epoch_key, length))(keys)
    return order.reshape(config.num_gradient_steps, length // config.num_minibatches)


def gradient(
    config: PPOConfig, net: ActorCritic, params: Params, prepared: Prepared, step: Array
) -> tuple[Params, Metrics]:
    """Gradient of the loss over minibatch number `step`."""
    minibatch = take_minibatch(config, net, params, prepared, step)
    grads, metrics = jax.grad(partial(loss, config, net), has_aux=True)(params, minibatch)
    return grads, metrics | {"gradient/norm": optax.tree.norm(grads)}


def take_minibatch(config: PPOConfig, net: ActorCritic, params: Params, prepared: Prepared, step: Array) -> Batch:
    """Minibatch number `step`: steps of time, or chunks of it side by side, each with the state that `params` begin with."""
    batch, chosen = prepared.batch, prepared.order[step]
    if not net.remembers:
        return jax.tree.map(lambda x: x[chosen], batch)
    sizes = _chunk_sizes(config, batch.weight.shape[0])
    state = chunked_unroll.chunk_states(
        net, params, batch.observation, batch.is_first, batch.agent_state, chosen, sizes
    )
    steps = chunked_unroll.take_chunks(dataclasses.replace(batch, agent_state=()), chosen, sizes.length)
    return dataclasses.replace(steps, agent_state=state)


def finish(
    config: PPOConfig,
    schedule: optax.Schedule,
    state: LearnerState,
    progress: Progress,
    summary: Summary,
    step_metrics: Metrics,
) -> tuple[LearnerState, Metrics]:
    """The next learner state, and metrics averaged over the gradient steps."""
    result = {name: value for name, value in summary.items() if name != _TARGETS}
    result |= {name: jnp.mean(values) for name, values in step_metrics.items()}
    result["update/skipped_minibatches"] = progress.num_skipped.astype(jnp.float32)
    result["learning_rate"] = jnp.asarray(schedule(state.num_updates), jnp.float32)
    params, extra = progress.params, dict(state.extra or {})
    if config.value_normalisation != "none":
        old = extra[_POPART]
        extra[_POPART] = popart.merge(old, summary[_TARGETS], config.value_normalisation_step)
        if config.value_normalisation == "popart":
            params = popart.rescale(params, old, extra[_POPART])
        result["value/mean"], result["value/deviation"] = extra[_POPART].mean, popart.deviation(extra[_POPART])
    if config.max_staleness is not None:
        extra[_VERSION] = state.num_updates + 1
    return LearnerState(params, progress.opt_state, state.num_updates + 1, extra or ()), result


def _kl_stop(config: PPOConfig) -> Callable[[Metrics], Array] | None:
    target = config.target_kl
    return None if target is None else lambda metrics: metrics["policy/approx_kl"] > target


def _squared_value_error(config: PPOConfig, value: Array, batch: Batch) -> Array:
    error = jnp.square(value - batch.target_value)
    if config.value_clip_epsilon is None:
        return error
    epsilon = config.value_clip_epsilon
    clipped = batch.old_value + jnp.clip(value - batch.old_value, -epsilon, epsilon)
    return jnp.maximum(error, jnp.square(clipped - batch.target_value))
