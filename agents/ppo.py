"""PPO-clip as pure functions. Source: Schulman et al. 2017 (arXiv:1707.06347), eq. 7 and 9.

`update` is one update, `loss` its loss. `docs/algorithms/ppo.md` lists every detail that the paper leaves open.
"""

import dataclasses
from functools import partial
from typing import Any, Literal

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
from agents.ops import popart, returns, validate
from agents.ops.gradient_steps import init_progress, take_step
from agents.ops.minibatches import shuffled_minibatches
from agents.ops.optimizers import clipped_adam
from agents.ops.policy_gradient import clipped_squared_error, clipped_surrogate_loss, counted_log_ratio
from agents.ops.schedules import Kind, make_schedule
from agents.ops.vtrace import VTraceConfig, unweighted_vtrace
from agents.transforms.normalization import NormalizationConfig
from agents.transforms.on_policy_agent import make_on_policy_agent
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import EnvSpec


@dataclasses.dataclass(frozen=True)
class PPOConfig:
    """Hyper-parameters; defaults of the paper's Atari and MuJoCo experiments where it gives them.

    Attributes:
        learning_rate: Initial learning rate of Adam.
        learning_rate_schedule: "constant", or "linear" to 0 after `total_updates`.
        total_updates: Updates of the whole run, for the schedule.
        discount: g.
        gae_lambda: lambda of GAE.
        clip_epsilon: Largest distance from 1 at which the probability ratio counts.
        value_clip_epsilon: Largest distance of a value from its old one, in reward units; None does not clip.
        value_coef: Weight of the value error.
        entropy_coef: Weight of the entropy bonus.
        max_grad_norm: Gradients are scaled down to this global norm.
        num_epochs: Passes over a trajectory.
        num_minibatches: Gradient steps of a pass; divides T.
        normalize_advantage: Whether advantages are standardized in each minibatch.
        target_kl: Once a minibatch's approximate KL (nats) exceeds it, the update's remaining steps are skipped; None: off.
        adam_epsilon: 1e-5 as in the authors' code.
        normalization: Observations and rewards by running statistics; off by default.
        decoupled: Ratios are clipped around the policy before the update, not around the one that acted. Steps are weighted by
            the ratio of the former to the latter (Hilton et al. 2021, arXiv:2110.00641). For a policy lag above 0.
        targets: "gae", or "vtrace": advantages and value targets corrected for what the policy has changed since it acted.
        vtrace_clip: rho_bar = c_bar of V-trace, the largest importance weight.
        dual_clip: c > 1: where the advantage A < 0, the surrogate is at least c A (Ye et al. 2020); None: off.
        reward_clip: Rewards are clipped to [-reward_clip, reward_clip] before they are scaled; None: off.
        value_normalization: "popart" normalizes value targets by running moments, and rescales the value's last layer so that
            its predictions stay. "moments" normalizes without rescaling (Yu et al. 2022). "none": values in reward units.
        value_normalization_step: Share of a batch in those moments.
        max_staleness: Steps whose policy is more updates behind than this do not count; None: all count.
        chunk_length: Steps that a network with memory is unrolled with gradient; divides T; None: T.
        burn_in: Steps before each chunk that are run again at every gradient step, at most `chunk_length`.
    """

    learning_rate: float = 3e-4
    learning_rate_schedule: Kind = "constant"
    total_updates: int = 0
    discount: float = 0.99
    gae_lambda: float = 0.95
    clip_epsilon: float = 0.2
    value_clip_epsilon: float | None = None
    value_coef: float = 0.5
    entropy_coef: float = 0.01
    max_grad_norm: float = 0.5
    num_epochs: int = 4
    num_minibatches: int = 4
    normalize_advantage: bool = True
    target_kl: float | None = None
    adam_epsilon: float = 1e-5
    normalization: NormalizationConfig = dataclasses.field(default_factory=NormalizationConfig)
    decoupled: bool = False
    targets: Literal["gae", "vtrace"] = "gae"
    vtrace_clip: float = 1.0
    dual_clip: float | None = None
    reward_clip: float | None = None
    value_normalization: Literal["none", "popart", "moments"] = "none"
    value_normalization_step: float = 0.05
    max_staleness: int | None = None
    chunk_length: int | None = None
    burn_in: int = 0

    def __post_init__(self) -> None:
        validate.at_least_one(self, "num_epochs", "num_minibatches")
        validate.fraction(self, "discount", "gae_lambda")
        validate.positive(self, "learning_rate", "clip_epsilon", "max_grad_norm", "vtrace_clip", "reward_clip")
        validate.not_negative(self, "max_staleness")
        if self.dual_clip is not None and not self.dual_clip > 1.0:
            raise UserError(f"dual_clip must exceed 1: got {self.dual_clip}")
        if not 0.0 < self.value_normalization_step <= 1.0:
            raise UserError(f"value_normalization_step must lie in (0, 1]: got {self.value_normalization_step}")
        chunked_unroll.validate_chunk_sizes(self.chunk_length, self.burn_in)

    @property
    def num_gradient_steps(self) -> int:
        """Gradient steps of one update."""
        return self.num_epochs * self.num_minibatches


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Batch:
    """Inputs of the loss for each step; [T, B, ...] each leaf.

    Attributes:
        observation: Observation that was acted on.
        action: Action that was chosen.
        proximal_log_prob: Log-probability of the action under the policy around which ratios are clipped, nats.
        importance: Probability under that policy divided by the probability when the action was chosen.
        old_value: Output of the network before the update.
        advantage: Reward units.
        target_value: In the units of the network's output: reward units, or normalized.
        weight: 0 where the step only reset, or is too stale.
        is_first: Whether the observation is the first of an episode.
        agent_state: State before each chunk, [C, B, ...] each for C chunks of a trajectory (see
            `agents.networks.chunked_unroll`); [B, ...] each in the loss; () for a network without memory.
    """

    observation: Observation
    action: Action
    proximal_log_prob: Array
    importance: Array
    old_value: Array
    advantage: Array
    target_value: Array
    weight: Array
    is_first: Array
    agent_state: AgentState = ()


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Minibatches:
    """All minibatches of an update.

    Attributes:
        batch: [T, B, ...] each.
        order: [num_gradient_steps, T / num_minibatches] int32, the steps of time in each minibatch. For a network with memory,
            [num_gradient_steps, C / num_minibatches] int32, the chunks in each.
    """

    batch: Batch
    order: Array


def make_ppo(config: PPOConfig, spec: EnvSpec, network: NetworkConfig | ActorCritic) -> Agent:
    """Returns PPO for this environment and network (or one of your own: `memoryless_network`).

    Raises:
        UserError: Environment and network do not fit.
    """
    net = bound_network(network, spec)
    rate = make_schedule(config.learning_rate_schedule, config.learning_rate, config.total_updates)
    optimizer = clipped_adam(rate, config.max_grad_norm, config.adam_epsilon)
    init_fn, update_fn = partial(init, config, net, optimizer), partial(update, config, net, optimizer, rate)
    parts = partial(prepare, config, net), partial(gradient, config, net), partial(apply, config, optimizer)
    steps = GradientSteps(config.num_gradient_steps, *parts, partial(finish, config, rate))
    return make_on_policy_agent("ppo", config, spec, net, init_fn, update_fn, steps, config.reward_clip)


def init(config: PPOConfig, net: ActorCritic, optimizer: optax.GradientTransformation, key: Array) -> LearnerState:
    """Returns the first learner state. `key` is consumed."""
    params = net.init(key)
    extra: dict[str, Any] = {}
    if config.value_normalization == "popart":
        popart.value_layer(params)  # raises UserError for a network without the layer that PopArt rescales
    if config.value_normalization != "none":
        extra["popart"] = popart.init()
    if config.max_staleness is not None:
        extra["version"] = jnp.zeros((), jnp.int32)
    return LearnerState(params, optimizer.init(params), jnp.zeros((), jnp.int32), extra or ())


def update(
    config: PPOConfig,
    net: ActorCritic,
    optimizer: optax.GradientTransformation,
    rate: optax.Schedule,
    state: LearnerState,
    trajectory: Trajectory,
    key: Array,
) -> tuple[LearnerState, Metrics]:
    """Returns the state after all epochs over one trajectory, and metrics. `key` is consumed."""
    minibatches, summary = prepare(config, net, state.params, state.extra, trajectory, key)

    def step(progress: Progress, number: Array) -> tuple[Progress, Metrics]:
        grads, metrics = gradient(config, net, progress.params, minibatches, number)
        return apply(config, optimizer, progress, grads, metrics), metrics

    progress, step_metrics = jax.lax.scan(step, init_progress(state), jnp.arange(config.num_gradient_steps))
    return finish(config, rate, state, progress, summary, step_metrics)


def prepare(
    config: PPOConfig, net: ActorCritic, params: Params, extra: Any, trajectory: Trajectory, key: Array
) -> tuple[Minibatches, Summary]:
    """Returns the minibatches of all epochs, and metrics. `key` is consumed.

    Raises:
        UserError: `num_minibatches` does not divide T, or the number of chunks.
    """
    batch, target = make_batch(config, net, params, trajectory, extra)
    length, length_name = batch.weight.shape[0], "rollout_length"
    if net.is_recurrent:
        length, length_name = length // _chunk_sizes(config, length).length, "rollout_length / chunk_length"
    order = shuffled_minibatches(key, length, config.num_epochs, config.num_minibatches, length_name)
    explained = returns.explained_variance(batch.target_value, batch.old_value, batch.weight)
    summary: Summary = {"value/explained_variance": explained}
    if config.max_staleness is not None:
        summary["batch/stale_fraction"] = 1.0 - jnp.sum(batch.weight) / jnp.maximum(jnp.sum(trajectory.valid), 1)
    if config.value_normalization != "none":
        summary["popart/targets"] = popart.target_moments(target, batch.weight)
    return Minibatches(batch, order), summary


def make_batch(
    config: PPOConfig, net: ActorCritic, params: Params, trajectory: Trajectory, extra: Any = ()
) -> tuple[Batch, Array]:
    """Returns the inputs of the loss under the newest parameters, and value targets [T, B] in reward units."""
    observation, is_first = trajectory.observation, trajectory.is_first
    if net.is_recurrent:
        sizes = _chunk_sizes(config, is_first.shape[0] - 1)
        parameters, output, states = chunked_unroll.unroll_in_chunks(
            net, params, observation, is_first, trajectory.agent_state, sizes
        )
    else:
        parameters, output, states = net.unroll(params, observation, (), is_first)
        parameters = parameters[:-1]
    normalizes = config.value_normalization != "none"
    value = popart.denormalize(extra["popart"], output) if normalizes else output
    steps = (trajectory.reward, value, trajectory.terminated, trajectory.truncated, trajectory.valid)
    behavior = proximal = trajectory.extras["behavior_log_prob"]
    if config.decoupled:
        proximal = net.distribution.log_prob(parameters, trajectory.action)
    if config.targets == "vtrace":
        log_ratio = net.distribution.log_prob(parameters, trajectory.action) - behavior
        bounds = VTraceConfig(rho_bar=config.vtrace_clip, c_bar=config.vtrace_clip, lambda_=config.gae_lambda)
        target, advantage = unweighted_vtrace(log_ratio, *steps, discount=config.discount, config=bounds)
    else:
        advantage = returns.gae(*steps, discount=config.discount, lambda_=config.gae_lambda)
        target = advantage + value[:-1]
    weight = trajectory.valid
    if config.max_staleness is not None:
        weight &= extra["version"] - trajectory.policy_version <= config.max_staleness
    batch = Batch(
        observation=jax.tree.map(lambda leaf: leaf[:-1], observation),
        action=trajectory.action,
        proximal_log_prob=proximal,
        importance=jnp.exp(counted_log_ratio(proximal, behavior, trajectory.valid)),
        old_value=output[:-1],
        advantage=advantage,
        target_value=popart.normalize(extra["popart"], target) if normalizes else target,
        weight=weight.astype(output.dtype),
        is_first=is_first[:-1],
        agent_state=states,
    )
    return batch, target


def gradient(
    config: PPOConfig, net: ActorCritic, params: Params, minibatches: Minibatches, number: Array
) -> tuple[Params, Metrics]:
    """Returns the gradient of the loss over one minibatch, and metrics."""
    minibatch = take_minibatch(config, net, params, minibatches, number)
    grads, metrics = jax.grad(partial(loss, config, net), has_aux=True)(params, minibatch)
    return grads, metrics | {"gradient/norm": optax.tree.norm(grads)}


def take_minibatch(
    config: PPOConfig, net: ActorCritic, params: Params, minibatches: Minibatches, number: Array
) -> Batch:
    """Returns one minibatch: steps of time, or chunks of it side by side, each with its initial state under `params`."""
    batch, chosen = minibatches.batch, minibatches.order[number]
    if not net.is_recurrent:
        return jax.tree.map(lambda x: x[chosen], batch)
    sizes = _chunk_sizes(config, batch.weight.shape[0])
    state = chunked_unroll.chunk_states(
        net, params, batch.observation, batch.is_first, batch.agent_state, chosen, sizes
    )
    steps = chunked_unroll.take_chunks(dataclasses.replace(batch, agent_state=()), chosen, sizes.length)
    return dataclasses.replace(steps, agent_state=state)


def loss(config: PPOConfig, net: ActorCritic, params: Params, batch: Batch) -> tuple[Array, Metrics]:
    """Returns clipped surrogate + value error - entropy bonus, and metrics; steps of weight 0 do not count."""
    parameters, value, _ = net.unroll(params, batch.observation, batch.agent_state, batch.is_first)
    mean = partial(returns.weighted_mean, weight=batch.weight)
    log_prob, advantage = net.distribution.log_prob(parameters, batch.action), batch.advantage
    if config.normalize_advantage:
        advantage = returns.standardize(advantage, batch.weight)
    advantage *= batch.importance
    policy, metrics = clipped_surrogate_loss(
        log_prob, batch.proximal_log_prob, advantage, batch.weight, config.clip_epsilon, config.dual_clip
    )
    error = clipped_squared_error(value, batch.old_value, batch.target_value, config.value_clip_epsilon)
    value_error, entropy = 0.5 * mean(error), mean(net.distribution.entropy(parameters))
    total = policy + config.value_coef * value_error - config.entropy_coef * entropy
    return total, metrics | {"loss/total": total, "loss/value": value_error, "policy/entropy": entropy}


def apply(
    config: PPOConfig, optimizer: optax.GradientTransformation, progress: Progress, grads: Params, metrics: Metrics
) -> Progress:
    """Returns the progress after one optimizer step, which is skipped once the approximate KL has exceeded `target_kl`."""
    stop = None if config.target_kl is None else metrics["policy/approx_kl"] > config.target_kl
    return take_step(optimizer, progress, grads, stop)


def finish(
    config: PPOConfig,
    rate: optax.Schedule,
    state: LearnerState,
    progress: Progress,
    summary: Summary,
    step_metrics: Metrics,
) -> tuple[LearnerState, Metrics]:
    """Returns the next learner state, and metrics averaged over the gradient steps."""
    metrics = {name: value for name, value in summary.items() if name != "popart/targets"}
    metrics |= {name: jnp.mean(values) for name, values in step_metrics.items()}
    metrics["ppo/skipped_minibatches"] = progress.num_skipped.astype(jnp.float32)
    metrics["learning_rate"] = jnp.asarray(rate(state.num_updates), jnp.float32)
    params, extra = progress.params, dict(state.extra or {})
    if config.value_normalization != "none":
        old = extra["popart"]
        extra["popart"] = popart.merge(old, summary["popart/targets"], config.value_normalization_step)
        params = popart.rescale(params, old, extra["popart"]) if config.value_normalization == "popart" else params
        metrics["value/mean"], metrics["value/deviation"] = extra["popart"].mean, popart.deviation(extra["popart"])
    if config.max_staleness is not None:
        extra["version"] = state.num_updates + 1
    return LearnerState(params, progress.opt_state, state.num_updates + 1, extra or ()), metrics


def _chunk_sizes(config: PPOConfig, num_steps: int) -> chunked_unroll.ChunkSizes:
    return chunked_unroll.ChunkSizes(config.chunk_length or num_steps, config.burn_in)
