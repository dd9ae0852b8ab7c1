"""R2D2: recurrent Q-learning from stored sequences. A variant of DQN (`agents.dqn`).

Source: Kapturowski et al. 2019, "Recurrent Experience Replay in Distributed Reinforcement Learning" (ICLR).

A window consists of a burn-in, the steps that are learned, and n more steps that their returns need. Both networks start from the
state that was stored at the start of the window's trajectory, and unroll over the burn-in without gradient.
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
    ReplayAgent,
    ReplayConfig,
    Sample,
    Trajectory,
)
from agents.binding import keeps_binding
from agents.dqn import DQN, DQNConfig, actor_td_errors, apply_gradient, bind_dqn, build_dqn, n_step_returns
from agents.networks.config import NetworkConfig
from agents.networks.observation_scale import normalized_spec
from agents.ops import validate
from agents.ops.epsilon_greedy import greedy, select_action
from agents.ops.importance_weights import importance_weights
from agents.ops.n_step import take_steps
from agents.ops.optimizers import OptimizerConfig
from agents.ops.returns import weighted_mean
from agents.ops.td_errors import window_priority
from agents.ops.value_distributions import clamped_fraction
from agents.transforms.normalized_samples import with_normalized_samples
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import EnvSpec


@dataclasses.dataclass(frozen=True)
class R2D2Config(DQNConfig):
    """Hyper-parameters of DQN and R2D2; the defaults are those of the paper, table 2, except for the sizes of a smaller run.

    The paper's 256 actors learn once from 6,400 env steps and copy the target network after 2,500 gradient steps. Here one
    gradient step follows 640 env steps, so that each step is learned 8 times, as in DQN.

    Attributes:
        burn_in: Steps before the learned ones.
        sequence_length: Steps of a window that are learned.
        stride: Steps between the starts of two windows of a row, a multiple of the rollout length. Windows overlap, because they
            are `burn_in + sequence_length + n_step` steps long.
        priority_eta: Weight of the largest error in a window's priority; the mean error has the rest.
    """

    replay: ReplayConfig = dataclasses.field(
        default_factory=lambda: ReplayConfig(
            capacity=1_000_000,
            batch_size=64,
            min_size=20_000,
            gradient_steps_per_env_step=1 / 640,
            priority_exponent=0.9,
        )
    )
    epsilon_start: float = 0.4
    epsilon_end: float = 0.4
    apex_alpha: float = 7.0
    learning_rate: float = 1e-4
    optimizer: OptimizerConfig = OptimizerConfig(epsilon=1e-3, max_grad_norm=40.0)
    discount: float = 0.997
    n_step: int = 5
    target_update_period: int = 400
    double: bool = True
    dueling: bool = True
    huber_delta: float | None = None
    value_rescale_epsilon: float | None = 1e-3
    importance_sampling_exponent: float = 0.6
    importance_sampling_end: float = 0.6
    initial_priority: Literal["max", "actor"] = "actor"
    burn_in: int = 40
    sequence_length: int = 80
    stride: int = 40
    priority_eta: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.not_negative(self, "burn_in")
        validate.at_least_one(self, "sequence_length", "stride")
        validate.fraction(self, "priority_eta")

    @property
    def window_length(self) -> int:
        """L, steps of a window."""
        return self.burn_in + self.sequence_length + self.n_step


@keeps_binding
def make_r2d2(config: R2D2Config, spec: EnvSpec, network: NetworkConfig) -> ReplayAgent:
    """Returns an R2D2 agent.

    Raises:
        UserError: If the action is not one Discrete leaf, the network is not recurrent or does not fit, or a schedule needs the
            number of updates.
    """
    spec = normalized_spec(spec, config.normalize_observations)
    if network.core == "none":
        raise UserError(
            "R2D2 learns what a memory does: expected network.core 'lstm', 'gru' or 'gtrxl', got 'none'; use it, or DQN"
        )
    dqn = build_dqn(config, spec, network)
    agent = bind_dqn(dqn)
    data = dataclasses.replace(
        agent.data,
        sequence_length=config.window_length,
        stride=config.stride,
        initial_priority=partial(initial_priority, config, dqn) if config.initial_priority == "actor" else None,
    )
    agent = agent._replace(name="r2d2", update=partial(update, config, dqn), data=data)
    return with_normalized_samples(agent, spec, config.normalize_observations)


def update(
    config: R2D2Config, dqn: DQN, state: LearnerState, sample: Sample, key: Array
) -> tuple[LearnerState, Metrics, Array]:
    """Returns the state after one gradient step, metrics, and the windows' priorities. `key` is consumed (by noisy layers)."""
    learned = sample.trajectory.valid[config.burn_in : config.burn_in + config.sequence_length]
    importance = importance_weights(sample.probability, jnp.any(learned, axis=0), dqn.beta(state.num_updates))
    gradient = jax.grad(partial(loss, config, dqn), has_aux=True)
    grads, aux = gradient(state.params["network"], state.extra.target, sample.trajectory, importance, key)
    metrics, priority = aux
    state, step_metrics = apply_gradient(dqn, state, grads)
    return state, metrics | step_metrics, priority


def loss(
    config: R2D2Config, dqn: DQN, params: Params, target: Params, window: Trajectory, importance: Array, key: Array
) -> tuple[Array, tuple[Metrics, Array]]:
    """Returns the weighted loss of the chosen actions, metrics, and the priorities [N].

    The loss is the sum over the learned steps of a window, and the mean over windows.

    Args:
        config: Hyper-parameters.
        dqn: The bound algorithm.
        params: Parameters of the network.
        target: Parameters of the target network.
        window: [L(+1), N, ...] windows.
        importance: [N] float32 importance weights.
        key: Key of the noisy layers, consumed.
    """
    keys = jax.random.split(key, 2) if config.noisy else (None, None)
    online = unroll_after_burn_in(config, dqn, params, window, keys[0])
    evaluated = jax.lax.stop_gradient(unroll_after_burn_in(config, dqn, target, window, keys[1]))
    steps = jax.tree.map(lambda x: x[config.burn_in :], dataclasses.replace(window, agent_state=()))
    length = config.sequence_length
    rewards = jax.tree.map(lambda x: x[:length], n_step_returns(config, steps))
    preference = dqn.values.mean(jax.lax.stop_gradient(online) if config.double else evaluated)
    best = greedy(preference, dqn.net.legal(params, steps.observation))
    bootstrap = take_steps(jax.lax.stop_gradient(select_action(evaluated, best)), rewards.position)
    chosen = select_action(online[:length], steps.action[:length])
    error, difference = dqn.values.loss(chosen, bootstrap, rewards.reward, rewards.discount)
    counted = steps.valid[:length].astype(jnp.float32)
    mean = partial(weighted_mean, weight=counted)
    total = jnp.mean(jnp.sum(jnp.where(counted > 0, error, 0.0), axis=0) * importance)
    priority = window_priority(difference, counted, config.priority_eta)
    metrics = {
        "loss/total": total,
        "value/mean": mean(dqn.values.mean(chosen)),
        "value/bootstrap": mean(dqn.values.mean(bootstrap)),
        "replay/priority": jnp.mean(priority),
        "replay/importance": jnp.mean(importance),
    }
    metrics |= clamped_fraction(dqn.values, bootstrap, rewards.reward, rewards.discount, counted)
    return total, (metrics, priority)


def unroll_after_burn_in(
    config: R2D2Config, dqn: DQN, params: Params, window: Trajectory, noise: Array | None
) -> Array:
    """Returns outputs [sequence_length + n + 1, N, A, K] of the steps after the burn-in, whose state has no gradient."""
    inputs = (window.observation, window.is_first)
    state: AgentState = window.agent_state["network"] if config.apex_alpha else window.agent_state
    if config.burn_in:
        observation, is_first = jax.tree.map(lambda x: x[: config.burn_in], inputs)
        _, state = dqn.net.unroll(params, observation, state, is_first, noise)
        state = jax.lax.stop_gradient(state)
    observation, is_first = jax.tree.map(lambda x: x[config.burn_in :], inputs)
    outputs, _ = dqn.net.unroll(params, observation, state, is_first, noise)
    return outputs


def initial_priority(config: R2D2Config, dqn: DQN, steps: Trajectory) -> Array:
    """Returns [T, B] priorities of the windows that start at the first T of T + L - 1 steps, from values `act` recorded."""
    errors = actor_td_errors(dqn, steps)
    num_starts = errors.shape[0] - config.window_length + 1
    index = config.burn_in + jnp.arange(config.sequence_length)[:, None] + jnp.arange(num_starts)
    windows: Any = jax.tree.map(lambda x: x[index], (errors, steps.valid.astype(jnp.float32)))
    return window_priority(*windows, eta=config.priority_eta)
