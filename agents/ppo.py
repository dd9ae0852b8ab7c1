"""PPO-clip as pure functions. Source: Schulman et al. 2017 (arXiv:1707.06347), eq. 7 and 9.

`prepare`, `gradient`, `apply` and `finish` are the parts of an update. `docs/algorithms/ppo.md` lists what the paper omits.
"""

import dataclasses
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax

from agents.api import (
    Agent,
    Array,
    GradientSteps,
    LearnerState,
    Metrics,
    Params,
    Progress,
    Summary,
    Trajectory,
)
from agents.binding import keeps_binding
from agents.networks import chunked_unroll
from agents.networks.actor_critic import ActorCritic
from agents.networks.config import NetworkConfig
from agents.networks.custom import bound_network
from agents.networks.observation_scale import normalized_spec
from agents.ops import popart, returns, validate
from agents.ops.gradient_steps import make_update, take_step
from agents.ops.minibatches import (
    Axis,
    Batch,
    Minibatches,
    shuffled_minibatches,
    shuffled_row_minibatches,
    take_rows,
    take_steps,
    validate_standardized,
)
from agents.ops.optimizers import OptimizerConfig, make_optimizer
from agents.ops.policy_gradient import (
    SurrogateCoefficients,
    clipped_surrogate_loss,
    clipped_value_error,
    counted_log_ratio,
)
from agents.ops.schedules import (
    CONSTANT,
    ScheduleConfig,
    Schedules,
    adapt_rate_scale,
    current_values,
    init_factors,
    make_schedules,
)
from agents.ops.vtrace import VTraceConfig, unweighted_vtrace
from agents.settings import complete
from agents.transforms.normalization import NormalizationConfig
from agents.transforms.on_policy_agent import make_on_policy_agent
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import EnvSpec

_RATE_SCALE = "learning_rate/scale"  # metric of a gradient step that takes `Minibatches.rate_scale` to `apply`


@dataclasses.dataclass(frozen=True)
class PPOConfig:
    """Hyper-parameters; discount, lambda and clip are the paper's for MuJoCo, the others those of usual code (OpenAI Baselines).

    Attributes:
        learning_rate: Initial learning rate.
        learning_rate_schedule: Change of the learning rate over the run.
        adaptive_kl: Target of the mean approximate KL, nats. After an update above twice the target the learning rate is divided
            by 1.5; below half of it, it is multiplied by 1.5. It stays in [1e-6, 1e-2]. Needs a constant schedule. None: off.
        total_updates: Updates of the whole run, for schedules.
        discount: g.
        gae_lambda: lambda of GAE.
        clip_epsilon: Largest distance from 1 at which the probability ratio counts, initially.
        clip_epsilon_schedule: Change of that distance over the run.
        value_clip_epsilon: Largest distance of a value from its old one, in units of the network's values; None does not clip.
        value_huber_delta: Value error beyond which its loss is linear, in the same units; None: squared everywhere.
        value_coef: Weight of half the squared value error (the paper's is 1, of the whole one).
        entropy_coef: Initial weight of the entropy bonus.
        entropy_coef_schedule: Change of that weight over the run.
        optimizer: Settings of the optimizer; Adam's epsilon is 1e-5 as in the authors' code.
        num_epochs: Passes over a trajectory.
        num_minibatches: Gradient steps of a pass; divides T, or B.
        minibatch_axis: Minibatches are steps (or chunks) of "time" of all rows, or all steps of some "rows": always "rows" for a
            network with memory that is unrolled over all of T. For "rows" on several devices, `num_minibatches` should divide the
            rows of each, or rows move between them.
        normalize_advantage: Whether advantages are standardized in each minibatch.
        target_kl: Once a minibatch's approximate KL (nats) exceeds it, the update's remaining steps are skipped; None: off.
        normalization: Observations and rewards by running statistics; off by default.
        decoupled: Ratios are clipped around the policy before the update, not around the one that acted. Steps are weighted by
            the ratio of the former to the latter (Hilton et al. 2021, arXiv:2110.00641). For a policy lag above 0.
        targets: "gae", or "vtrace": advantages and value targets corrected for what the policy has changed since it acted.
        vtrace_clip: rho_bar = c_bar of V-trace, the largest importance weight.
        dual_clip: c > 1: where the advantage A < 0, the surrogate is at least c A (Ye et al. 2020); None: off.
        reward_clip: Rewards are clipped to [-reward_clip, reward_clip] before they are scaled; None: off.
        value_normalization: "popart" normalizes value targets by running moments, and rescales the value's last layer so that
            its predictions stay. "moments" normalizes without rescaling (Yu et al. 2022); values diverge where truncated
            episodes bootstrap far into the future. "none": the network's values are in units of rewards, after normalization.
        value_normalization_step: Share of a batch in those moments.
        max_staleness: Steps whose policy is more updates behind than this do not count; None: all count.
        chunk_length: Steps that a network with memory is unrolled with gradient; divides T; None: T.
        burn_in: Steps before each chunk that are run again at every gradient step, at most `chunk_length`.
    """

    learning_rate: float = 3e-4
    learning_rate_schedule: ScheduleConfig = CONSTANT
    adaptive_kl: float | None = None
    total_updates: int = 0
    discount: float = 0.99
    gae_lambda: float = 0.95
    clip_epsilon: float = 0.2
    clip_epsilon_schedule: ScheduleConfig = CONSTANT
    value_clip_epsilon: float | None = None
    value_huber_delta: float | None = None
    value_coef: float = 0.5
    entropy_coef: float = 0.01
    entropy_coef_schedule: ScheduleConfig = CONSTANT
    optimizer: OptimizerConfig = OptimizerConfig(max_grad_norm=0.5)
    num_epochs: int = 4
    num_minibatches: int = 4
    minibatch_axis: Axis = "time"
    normalize_advantage: bool = True
    target_kl: float | None = None
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
        complete(self)
        validate.at_least_one(self, "num_epochs", "num_minibatches")
        validate.fraction(self, "discount", "gae_lambda")
        validate.positive(
            self, "learning_rate", "clip_epsilon", "vtrace_clip", "reward_clip", "value_huber_delta", "adaptive_kl"
        )
        validate.positive(self, "target_kl", "value_clip_epsilon")
        validate.choices(self)
        validate.not_negative(self, "max_staleness", "value_coef", "entropy_coef")
        if self.dual_clip is not None and not self.dual_clip > 1.0:
            raise UserError(f"dual_clip must exceed 1: got {self.dual_clip}")
        validate.fraction(self, "value_normalization_step", above_zero=True)
        for name in ("adaptive_kl", "target_kl"):
            if getattr(self, name) is not None and self.num_gradient_steps <= self.optimizer.accumulate:
                raise UserError(
                    f"{name} needs more gradient steps of an update than optimizer.accumulate: the KL is 0 until parameters "
                    f"change; got {self.num_gradient_steps} and {self.optimizer.accumulate}"
                )
        schedule = self.learning_rate_schedule
        if self.adaptive_kl is not None and (schedule.kind != "constant" or schedule.warmup):
            raise UserError(
                f"adaptive_kl would cancel the schedule of the learning rate: expected kind 'constant' and warmup 0, got "
                f"{schedule.kind!r} and {schedule.warmup}; set agent.learning_rate_schedule.kind=constant and "
                f"agent.learning_rate_schedule.warmup=0, or leave adaptive_kl out"
            )
        chunked_unroll.validate_chunk_sizes(self.chunk_length, self.burn_in)

    @property
    def num_gradient_steps(self) -> int:
        """Gradient steps of one update."""
        return self.num_epochs * self.num_minibatches


@keeps_binding
def make_ppo(config: PPOConfig, spec: EnvSpec, network: NetworkConfig | ActorCritic) -> Agent:
    """Returns PPO with this network, or your own (`memoryless_network`); raises UserError where it does not fit the environment."""
    spec = normalized_spec(spec, config.normalization.observations)
    net = bound_network(network, spec)
    schedules = make_schedules(config, "learning_rate", "clip_epsilon", "entropy_coef")
    optimizer = make_optimizer(config.optimizer, schedules["learning_rate"])
    parts = partial(prepare, config, net, schedules), partial(gradient, config, net), partial(apply, config, optimizer)
    steps = GradientSteps(config.num_gradient_steps, *parts, partial(finish, config, schedules))
    init_fn, update_fn = partial(init, config, net, optimizer), make_update(steps)
    return make_on_policy_agent("ppo", config, spec, net, init_fn, update_fn, steps, config.reward_clip)


def init(config: PPOConfig, net: ActorCritic, optimizer: optax.GradientTransformation, key: Array) -> LearnerState:
    """Returns the first learner state. `key` is consumed."""
    params = net.init(key)
    extra: dict[str, Any] = init_factors("entropy_coef")
    if config.value_normalization == "popart":
        popart.value_layer(params)  # raises UserError for a network without the layer that PopArt rescales
    if config.value_normalization != "none":
        extra["popart"] = popart.init()
    if config.adaptive_kl is not None:
        extra["rate_scale"] = jnp.ones(())
    return LearnerState(params, optimizer.init(params), jnp.zeros((), jnp.int32), extra)


def prepare(
    config: PPOConfig,
    net: ActorCritic,
    schedules: Schedules,
    params: Params,
    extra: Any,
    trajectory: Trajectory,
    key: Array,
    num_updates: Array,
) -> tuple[Minibatches, Summary]:
    """Returns the minibatches of all epochs, and metrics. `key` is consumed.

    Raises:
        UserError: `num_minibatches` does not divide T, the number of chunks, or B; or minibatches have one step and standardized
            advantages.
    """
    batch, target = make_batch(config, net, params, trajectory, extra, num_updates)
    (length, num_rows), length_name = batch.weight.shape, "rollout_length"
    if _cuts_rows(config, net, length):
        order = shuffled_row_minibatches(key, num_rows, config.num_epochs, config.num_minibatches)
    else:
        if net.is_recurrent:
            length, length_name = length // _chunk_sizes(config, length).length, "rollout_length / chunk_length"
        order = shuffled_minibatches(key, length, config.num_epochs, config.num_minibatches, length_name)
    if config.normalize_advantage:
        validate_standardized(config.num_minibatches, *batch.weight.shape)
    explained = returns.explained_variance(batch.target_value, batch.old_value, batch.weight)
    summary: Summary = {"value/explained_variance": explained}
    if config.max_staleness is not None:
        summary["batch/stale_fraction"] = 1.0 - jnp.sum(batch.weight) / jnp.maximum(jnp.sum(trajectory.valid), 1)
    if config.value_normalization != "none":
        summary["popart/targets"] = popart.target_moments(target, batch.weight)
    entropy_coef = schedules["entropy_coef"](num_updates) * extra["entropy_coef_factor"]
    now = SurrogateCoefficients(schedules["clip_epsilon"](num_updates), entropy_coef)
    return Minibatches(batch, order, now, None if config.adaptive_kl is None else extra["rate_scale"]), summary


def make_batch(
    config: PPOConfig,
    net: ActorCritic,
    params: Params,
    trajectory: Trajectory,
    extra: Any = (),
    num_updates: Array | int = 0,
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
        weight &= num_updates - trajectory.policy_version <= config.max_staleness
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
    grads, metrics = jax.grad(partial(loss, config, net), has_aux=True)(params, minibatch, minibatches.coefficients)
    scale = {} if minibatches.rate_scale is None else {_RATE_SCALE: minibatches.rate_scale}
    return grads, metrics | {"gradient/norm": optax.tree.norm(grads)} | scale


def take_minibatch(
    config: PPOConfig, net: ActorCritic, params: Params, minibatches: Minibatches, number: Array
) -> Batch:
    """Returns one minibatch: steps of time, or chunks of it side by side, each with its initial state under `params`."""
    batch, chosen = minibatches.batch, minibatches.order[number]
    by_rows = _cuts_rows(config, net, batch.weight.shape[0])
    if by_rows:
        batch = take_rows(batch, chosen, config.num_minibatches)
    if not net.is_recurrent:
        return batch if by_rows else take_steps(batch, chosen)
    sizes = _chunk_sizes(config, batch.weight.shape[0])
    if by_rows:
        chosen = jnp.arange(batch.weight.shape[0] // sizes.length)
    state = chunked_unroll.chunk_states(
        net, params, batch.observation, batch.is_first, batch.agent_state, chosen, sizes
    )
    steps = chunked_unroll.take_chunks(dataclasses.replace(batch, agent_state=()), chosen, sizes.length)
    return dataclasses.replace(steps, agent_state=state)


def loss(
    config: PPOConfig, net: ActorCritic, params: Params, batch: Batch, now: SurrogateCoefficients
) -> tuple[Array, Metrics]:
    """Returns clipped surrogate + value error - entropy bonus, and metrics; steps of weight 0 do not count."""
    parameters, value, _ = net.unroll(params, batch.observation, batch.agent_state, batch.is_first)
    mean = partial(returns.weighted_mean, weight=batch.weight)
    log_prob, advantage = net.distribution.log_prob(parameters, batch.action), batch.advantage
    if config.normalize_advantage:
        advantage = returns.standardize(advantage, batch.weight)
    advantage *= batch.importance
    policy, metrics = clipped_surrogate_loss(
        log_prob, batch.proximal_log_prob, advantage, batch.weight, now.clip_epsilon, config.dual_clip
    )
    error = clipped_value_error(
        value, batch.old_value, batch.target_value, config.value_clip_epsilon, config.value_huber_delta
    )
    value_error, entropy = 0.5 * mean(error), mean(net.distribution.entropy(parameters))
    total = policy + config.value_coef * value_error - now.entropy * entropy
    return total, metrics | {"loss/total": total, "loss/value": value_error, "policy/entropy": entropy}


def apply(
    config: PPOConfig, optimizer: optax.GradientTransformation, progress: Progress, grads: Params, metrics: Metrics
) -> Progress:
    """Returns the progress after one optimizer step, which is skipped once the approximate KL has exceeded `target_kl`."""
    stop = None if config.target_kl is None else metrics["policy/approx_kl"] > config.target_kl
    return take_step(optimizer, progress, grads, stop, metrics.get(_RATE_SCALE))


def finish(
    config: PPOConfig,
    schedules: Schedules,
    state: LearnerState,
    progress: Progress,
    summary: Summary,
    step_metrics: Metrics,
) -> tuple[LearnerState, Metrics]:
    """Returns the next learner state, and metrics averaged over the gradient steps."""
    metrics = {name: value for name, value in summary.items() if name != "popart/targets"}
    metrics |= {name: jnp.mean(values) for name, values in step_metrics.items() if name != _RATE_SCALE}
    metrics["ppo/skipped_minibatches"] = progress.num_skipped.astype(jnp.float32)
    metrics |= current_values(schedules, state.num_updates)
    params, extra = progress.params, dict(state.extra)
    if config.adaptive_kl is not None:
        scale, rate, kl = extra["rate_scale"], metrics["learning_rate"], metrics["policy/approx_kl"]
        extra["rate_scale"] = adapt_rate_scale(scale, kl, config.adaptive_kl, rate)
        metrics["learning_rate"] = scale * rate
    if config.value_normalization != "none":
        old = extra["popart"]
        extra["popart"] = popart.merge(old, summary["popart/targets"], config.value_normalization_step)
        params = popart.rescale(params, old, extra["popart"]) if config.value_normalization == "popart" else params
        metrics["value/mean"], metrics["value/deviation"] = extra["popart"].mean, popart.deviation(extra["popart"])
    return LearnerState(params, progress.opt_state, state.num_updates + 1, extra), metrics


def _cuts_rows(config: PPOConfig, net: ActorCritic, num_steps: int) -> bool:
    is_whole = net.is_recurrent and config.chunk_length in (None, num_steps)  # then time has one chunk
    return config.minibatch_axis == "rows" or (is_whole and config.num_minibatches > 1)


def _chunk_sizes(config: PPOConfig, num_steps: int) -> chunked_unroll.ChunkSizes:
    return chunked_unroll.ChunkSizes(config.chunk_length or num_steps, config.burn_in)
