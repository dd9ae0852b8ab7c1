"""R2D2: recurrent Q-learning from stored sequences.

Source: Kapturowski et al. 2019, "Recurrent Experience Replay in Distributed Reinforcement Learning" (ICLR).

A window is burn-in, then the steps that are learned from, then n more that their returns reach into. Both networks begin with the
state that was stored when the window's trajectory began, and are run over the burn-in without gradient.
"""

import dataclasses
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp

from agents.api import (
    AgentState,
    Array,
    LearnerState,
    Metrics,
    Params,
    Replay,
    ReplayAgent,
    ReplayConfig,
    Sample,
    Trajectory,
)
from agents.dqn_config import DQNConfig
from agents.dqn_learning import (
    DQNParts,
    apply_gradient,
    bound,
    followed,
    make_parts,
    make_refresh,
    network_state,
    of_action,
    recorded_errors,
    returns_of,
    sample_weights,
)
from agents.networks.config import NetworkConfig
from agents.ops.epsilon_greedy import Exploration
from agents.ops.n_step import at_positions
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import EnvSpec


@dataclasses.dataclass(frozen=True)
class R2D2Config(DQNConfig):
    """As DQNConfig, with the paper's settings (table 2) where they differ.

    Attributes:
        burn_in: steps before those learned from.
        length: steps of a window that are learned from.
        period: steps between the beginnings of two windows of a row; a multiple of the rollout length. Windows are
            burn_in + length + num_steps long, so that they overlap.
        priority_max_share: eta, the share of the largest error in a window's priority; the rest is that of their mean.
    """

    replay: ReplayConfig = dataclasses.field(
        default_factory=lambda: ReplayConfig(batch_size=64, samples_per_insert=0.01, priority_exponent=0.9)
    )
    exploration: Exploration = dataclasses.field(default_factory=lambda: Exploration(0.4, 0.4, ladder=7.0))
    learning_rate: float = 1e-4
    adam_epsilon: float = 1e-3
    max_grad_norm: float | None = 40.0
    discount: float = 0.997
    num_steps: int = 5
    target_period: int = 2_500
    double: bool = True
    dueling: bool = True
    huber_delta: float | None = None
    value_rescaling: float | None = 1e-3
    importance_exponent: float = 0.6
    initial_priorities: Literal["highest", "recorded"] = "recorded"
    burn_in: int = 40
    length: int = 80
    period: int = 40
    priority_max_share: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.burn_in < 0:
            raise UserError(f"burn_in must not be negative: got {self.burn_in}")
        for name in ("length", "period"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1: got {getattr(self, name)}")
        if not 0.0 <= self.priority_max_share <= 1.0:
            raise UserError(f"priority_max_share must lie in [0, 1]: got {self.priority_max_share}")

    @property
    def window(self) -> int:
        """L, steps of a window."""
        return self.burn_in + self.length + self.num_steps


def make_r2d2(config: R2D2Config, spec: EnvSpec, network: NetworkConfig) -> ReplayAgent:
    """R2D2 for this environment.

    Raises:
        UserError: the action is not one Discrete leaf, the network does not remember or does not fit, or a schedule lacks the
            number of updates.
    """
    if network.core == "none":
        raise UserError(
            "R2D2 learns what a memory does: expected network.core 'lstm', 'gru' or 'gtrxl', got 'none'; use it, or DQN"
        )
    parts = make_parts(config, spec, network)
    data = Replay(
        config.replay,
        config.window,
        period=config.period,
        refresh=make_refresh(parts),
        initial_priority=partial(initial_priority, config, parts) if config.initial_priorities == "recorded" else None,
    )
    return ReplayAgent(name="r2d2", update=partial(update, config, parts), data=data, **bound(parts))


def unroll_after_burn_in(
    config: R2D2Config, parts: DQNParts, params: Params, steps: Trajectory, noise: Array | None
) -> Array:
    """Outputs [length + n + 1, N, A, K] of the steps after the burn-in, whose state carries no gradient."""
    inputs = (steps.observation, steps.is_first)
    before, after = (jax.tree.map(lambda x, cut=cut: x[cut], inputs) for cut in _cuts(config.burn_in))
    state: AgentState = network_state(parts, steps.agent_state)
    if config.burn_in:
        _, state = parts.net.unroll(params, before[0], state, before[1], noise)
        state = jax.lax.stop_gradient(state)
    outputs, _ = parts.net.unroll(params, after[0], state, after[1], noise)
    return outputs


def _cuts(burn_in: int) -> tuple[slice, slice]:
    return slice(0, burn_in), slice(burn_in, None)


def loss(
    config: R2D2Config, parts: DQNParts, params: Params, target: Params, steps: Trajectory, weight: Array, noise: Array
) -> tuple[Array, tuple[Metrics, Array]]:
    """Mean weighted error of the actions of the steps that are learned from; with metrics and the priorities [N].

    Args:
        config: of the agent.
        parts: likewise.
        params: of the network.
        target: of the target network.
        steps: [L(+1), N, ...] windows.
        weight: [N] float32 importance weights.
        noise: one key for noisy layers, consumed.
    """
    keys = jax.random.split(noise, 2) if config.noisy else (None, None)
    online = unroll_after_burn_in(config, parts, params, steps, keys[0])
    judged = jax.lax.stop_gradient(unroll_after_burn_in(config, parts, target, steps, keys[1]))
    learned = jax.tree.map(lambda x: x[config.burn_in :], dataclasses.replace(steps, agent_state=()))
    found = jax.tree.map(lambda x: x[: config.length], returns_of(config, learned))
    outputs = (jax.lax.stop_gradient(online), judged) if config.double else (judged, judged)
    following = at_positions(followed(parts, learned.observation, *outputs), found.position)
    taken = of_action(online[: config.length], learned.action[: config.length])
    error, difference = parts.values.loss(taken, following, found.reward, found.discount)
    counted = learned.valid[: config.length].astype(jnp.float32)
    count = jnp.maximum(jnp.sum(counted), 1.0)
    total = jnp.sum(error * counted * weight) / count
    priority = window_priority(config, difference, counted)
    metrics = {
        "loss/total": total,
        "value/mean": jnp.sum(parts.values.mean(taken) * counted) / count,
        "value/following": jnp.sum(parts.values.mean(following) * counted) / count,
        "replay/priority": jnp.mean(priority),
        "replay/importance": jnp.mean(weight),
    }
    return total, (metrics, priority)


def window_priority(config: R2D2Config, error: Array, counted: Array) -> Array:
    """[...] eta max + (1 - eta) mean of the errors [length, ...] that count (0 or 1, same shape); 0 if none does.

    Source: Kapturowski et al. 2019, section 2.3.
    """
    mean = jnp.sum(error * counted, axis=0) / jnp.maximum(jnp.sum(counted, axis=0), 1.0)
    share = config.priority_max_share
    return share * jnp.max(error * counted, axis=0) + (1.0 - share) * mean


def update(
    config: R2D2Config, parts: DQNParts, state: LearnerState, sample: Sample, key: Array
) -> tuple[LearnerState, Metrics, Array]:
    """One gradient step; `key` is consumed (by noisy layers)."""
    weight = sample_weights(parts, state, sample)
    gradient = jax.grad(partial(loss, config, parts), has_aux=True)
    grads, aux = gradient(state.params["network"], state.extra.target, sample.trajectory, weight, key)
    metrics, priority = aux
    state, metrics = apply_gradient(parts, state, grads, metrics)
    return state, metrics, priority


def initial_priority(config: R2D2Config, parts: DQNParts, steps: Trajectory) -> Array:
    """[T, B] priorities of the windows that begin at the first T of T + L - 1 steps, from what acting recorded."""
    errors = recorded_errors(parts, steps)
    num_begins = errors.shape[0] - config.window + 1
    index = config.burn_in + jnp.arange(config.length)[:, None] + jnp.arange(num_begins)
    found: Any = jax.tree.map(lambda x: x[index], (errors, steps.valid.astype(jnp.float32)))
    return window_priority(config, *found)
