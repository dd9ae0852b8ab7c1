"""The auxiliary phase of PPG: the trajectories that it keeps, its losses, and the gradient steps that both phases make.

Source: Cobbe et al. 2021 (arXiv:2009.04416), algorithm 1 and equations of section 2.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from agents.api import Array, Metrics, Observation, Params, Progress
from agents.networks.phasic import Phasic
from agents.ops import returns
from agents.ops.gradient_steps import make_apply
from agents.ppg_config import PPGConfig
from envpool_bridge.spec.specs import EnvSpec
from envpool_bridge.spec.tree import map_leaves

_METRICS = ("auxiliary/distillation", "auxiliary/clone_kl", "auxiliary/value", "auxiliary/gradient/norm")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Memory:
    """What is kept of the trajectories since the last auxiliary phase (N = num_policy_phases), one after another.

    Attributes:
        observation: [N T, B, ...] each leaf, as the policy phase saw them (normalised, if they are).
        target_value: [N T, B] float32, of the policy phase.
        valid: [N T, B] bool, False where the step only reset.
        metrics: of the newest auxiliary phase; zeros before the first.
    """

    observation: Observation
    target_value: Array
    valid: Array
    metrics: Metrics


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class AuxiliaryBatch:
    """What the auxiliary phase needs of each step; [N T, B, ...] each leaf.

    Attributes:
        observation: as in Memory.
        old_policy: [N T, B, P], the policy's parameters as the phase began.
        target_value: as in Memory.
        weight: [N T, B] float32, 0 where the step only reset.
    """

    observation: Observation
    old_policy: Array
    target_value: Array
    weight: Array


def empty_memory(config: PPGConfig, spec: EnvSpec) -> Memory:
    """Room for the trajectories of all policy phases."""
    shape = (config.num_policy_phases * config.rollout_length, config.num_rows)

    def room(leaf: Any) -> Array:
        return jnp.zeros((*shape, *leaf.shape), jax.dtypes.canonicalize_dtype(leaf.dtype))

    return Memory(
        observation=map_leaves(room, spec.observation),
        target_value=jnp.zeros(shape, jnp.float32),
        valid=jnp.zeros(shape, bool),
        metrics={name: jnp.zeros((), jnp.float32) for name in _METRICS},
    )


def remember(memory: Memory, observation: Observation, target_value: Array, valid: Array, place: Array) -> Memory:
    """The memory with a trajectory of T steps written over the one at `place` (int32 scalar in [0, N))."""
    begin = place * valid.shape[0]

    def write(kept: Array, new: Array) -> Array:
        return jax.lax.dynamic_update_slice_in_dim(kept, new.astype(kept.dtype), begin, axis=0)

    return Memory(
        observation=jax.tree.map(write, memory.observation, observation),
        target_value=write(memory.target_value, target_value),
        valid=write(memory.valid, valid),
        metrics=memory.metrics,
    )


def auxiliary_phase(
    config: PPGConfig,
    phasic: Phasic,
    optimizer: optax.GradientTransformation,
    progress: Progress,
    memory: Memory,
    key: Array,
) -> tuple[Progress, Metrics]:
    """Takes `num_auxiliary_steps` gradient steps; returns the progress and the mean of their metrics. `key` is consumed."""
    batch = AuxiliaryBatch(
        observation=memory.observation,
        old_policy=_policies(config, phasic, progress.params, memory.observation),
        target_value=memory.target_value,
        weight=memory.valid.astype(jnp.float32),
    )
    minibatches = config.num_policy_phases * config.num_auxiliary_minibatches
    order = time_order(key, memory.valid.shape[0], config.num_auxiliary_epochs, minibatches)
    return descend(partial(auxiliary_loss, config, phasic), optimizer, progress, batch, order, "auxiliary/")


def auxiliary_loss(config: PPGConfig, phasic: Phasic, params: Params, batch: AuxiliaryBatch) -> tuple[Array, Metrics]:
    """Error of the auxiliary value + clone_coef KL(old policy || policy) + error of the value; weight 0 does not count."""
    outputs, mean = phasic.outputs(params, batch.observation), partial(returns.weighted_mean, weight=batch.weight)
    distillation = 0.5 * mean(jnp.square(outputs.auxiliary - batch.target_value))
    clone = mean(phasic.divergence(batch.old_policy, outputs.policy))
    value = 0.5 * mean(jnp.square(outputs.value - batch.target_value))
    total = distillation + config.clone_coef * clone + value
    return total, {"auxiliary/distillation": distillation, "auxiliary/clone_kl": clone, "auxiliary/value": value}


def time_order(key: Array, length: int, num_epochs: int, num_minibatches: int) -> Array:
    """[num_epochs num_minibatches, length / num_minibatches] int32: each epoch's permutation of time, cut. `key` is consumed.

    B, which may be sharded over devices, stays where it is.
    """
    keys = jax.random.split(key, num_epochs)
    order = jax.vmap(lambda epoch_key: jax.random.permutation(epoch_key, length))(keys)
    return order.reshape(num_epochs * num_minibatches, length // num_minibatches)


def descend(
    loss: Callable[[Params, Any], tuple[Array, Metrics]],
    optimizer: optax.GradientTransformation,
    progress: Progress,
    batch: Any,
    order: Array,
    prefix: str = "",
) -> tuple[Progress, Metrics]:
    """Takes a gradient step for each row of `order`, which picks steps of `batch` along time.

    Returns the progress and the mean of the metrics.

    Args:
        loss: of parameters and a minibatch.
        optimizer: makes the steps.
        progress: to start with.
        batch: [T, B, ...] each leaf.
        order: [steps, minibatch length] int32.
        prefix: of the metric `gradient/norm`.
    """
    apply = make_apply(optimizer)

    def step(progress: Progress, chosen: Array) -> tuple[Progress, Metrics]:
        minibatch = jax.tree.map(lambda leaf: leaf[chosen], batch)
        grads, metrics = jax.grad(loss, has_aux=True)(progress.params, minibatch)
        return apply(progress, grads, metrics), metrics | {f"{prefix}gradient/norm": optax.tree.norm(grads)}

    progress, metrics = jax.lax.scan(step, progress, order)
    return progress, jax.tree.map(jnp.mean, metrics)


def _policies(config: PPGConfig, phasic: Phasic, params: Params, observation: Observation) -> Array:
    """[N T, B, P] of all that is kept, a trajectory at a time: activations of all of them at once would take N times the memory."""
    by_phase = jax.tree.map(
        lambda leaf: leaf.reshape(config.num_policy_phases, config.rollout_length, *leaf.shape[1:]), observation
    )
    policies = jax.lax.map(lambda steps: phasic.outputs(params, steps).policy, by_phase)
    return policies.reshape(-1, *policies.shape[2:])
