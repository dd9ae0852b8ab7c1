"""COMA as pure functions: counterfactual credit for the agents of a team. Source: Foerster et al. 2018 (arXiv:1705.08926).

A centralized critic estimates the value of each action of an agent, given the actions of the others. An agent's advantage is the
value of its action minus the mean over its policy. `docs/algorithms/coma.md` lists every choice made here.
"""

import dataclasses
from collections.abc import Mapping
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
    OnPolicy,
    Params,
    Progress,
    Summary,
    Trajectory,
)
from agents.binding import keeps_binding
from agents.networks.coma import ComaNetworks, make_coma_networks, team_view
from agents.networks.config import NetworkConfig
from agents.networks.observation_scale import normalized_spec
from agents.ops import returns, validate
from agents.ops.counterfactual import counterfactual_advantage, lambda_targets
from agents.ops.epsilon_greedy import select_action
from agents.ops.gradient_steps import take_step
from agents.ops.optimizers import OptimizerConfig, make_optimizer
from agents.ops.policy_gradient import approximate_kl, counted_log_ratio
from agents.ops.schedules import (
    CONSTANT,
    ScheduleConfig,
    Schedules,
    current_values,
    init_factors,
    make_schedule,
    make_schedules,
)
from agents.settings import complete
from agents.transforms.normalization import NormalizationConfig
from agents.transforms.on_policy_agent import make_on_policy_agent
from envpool_bridge.spec.specs import EnvSpec

_CRITIC_METRICS = ("loss/critic", "value/explained_variance", "gradient/critic_norm")
_ACTOR_METRICS = ("loss/policy", "policy/entropy", "policy/approx_kl", "advantage/deviation", "gradient/norm")
_IS_ACTOR_STEP = "update/actor_step"  # 1 where a gradient is the policy's, 0 where it is the critic's

Optimizers = Mapping[str, optax.GradientTransformationExtraArgs]
"""Those of "actor" and "critic"."""


@dataclasses.dataclass(frozen=True)
class COMAConfig:
    """Hyper-parameters; defaults of the authors' code (PyMARL) where they carry over.

    Attributes:
        learning_rate: Initial learning rate of the policy.
        critic_learning_rate: Initial learning rate of the critic.
        learning_rate_schedule: Change of both over the run.
        total_updates: Updates of the whole run, for schedules.
        discount: g.
        td_lambda: lambda of the critic's targets.
        num_critic_steps: Gradient steps of the critic in an update, each over the whole trajectory; one of the policy follows.
        target_period: Updates after which the target network becomes a copy of the critic; 1 copies it before every update.
        entropy_coef: Initial weight of the entropy bonus.
        entropy_coef_schedule: Change of that weight over the run.
        optimizer: Settings of both optimizers, each with its own state; Adam's epsilon as in PPO here.
        normalization: Observations and rewards by running statistics; off by default.
    """

    learning_rate: float = 5e-4
    critic_learning_rate: float = 5e-4
    learning_rate_schedule: ScheduleConfig = CONSTANT
    total_updates: int = 0
    discount: float = 0.99
    td_lambda: float = 0.8
    num_critic_steps: int = 8
    target_period: int = 1
    entropy_coef: float = 0.01
    entropy_coef_schedule: ScheduleConfig = CONSTANT
    optimizer: OptimizerConfig = OptimizerConfig(max_grad_norm=10.0)
    normalization: NormalizationConfig = dataclasses.field(default_factory=NormalizationConfig)

    def __post_init__(self) -> None:
        complete(self)
        validate.at_least_one(self, "num_critic_steps", "target_period")
        validate.fraction(self, "discount", "td_lambda")
        validate.positive(self, "learning_rate", "critic_learning_rate")
        validate.not_negative(self, "entropy_coef")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Batch:
    """Inputs of both losses; [T, B, ...] each, but `agent_state` [B, ...].

    Attributes:
        observation: Input of the policy.
        is_first: bool, whether `observation[t]` is the first of an episode.
        agent_state: State of the policy before the first step.
        view: Input of the critic: see `team_view`.
        action: int32.
        behavior_log_prob: Nats.
        target: Target of the chosen action's value, reward units.
        weight: 0 where the agent was absent or the step only reset.
    """

    observation: Observation
    is_first: Array
    agent_state: AgentState
    view: Observation
    action: Action
    behavior_log_prob: Array
    target: Array
    weight: Array


@keeps_binding
def make_coma(config: COMAConfig, spec: EnvSpec, network: NetworkConfig) -> Agent:
    """Returns COMA for this environment and network.

    Raises:
        UserError: If they do not fit: for instance actions other than one Discrete value with as many choices for every agent.
    """
    spec = normalized_spec(spec, config.normalization.observations)
    net = make_coma_networks(network, spec)
    schedules = make_schedules(config, "learning_rate", "entropy_coef")
    rate = make_schedule(config.learning_rate_schedule, config.critic_learning_rate, config.total_updates)
    rates = {"actor": schedules["learning_rate"], "critic": rate}
    optimizers = {name: make_optimizer(config.optimizer, rate) for name, rate in rates.items()}
    init_fn, update_fn = partial(init, net, optimizers), partial(update, config, net, spec, optimizers, schedules)
    steps = _gradient_steps(config, net, spec, optimizers, schedules)
    agent = make_on_policy_agent("coma", config, spec, net, init_fn, update_fn, steps)
    return agent._replace(data=OnPolicy(max_lag=0))


def init(net: ComaNetworks, optimizers: Optimizers, key: Array) -> LearnerState:
    """Returns the first learner state; `extra` is the target network. `key` is consumed."""
    params = net.init(key)
    opt_state = {name: optimizer.init(params[name]) for name, optimizer in optimizers.items()}
    # A copy: the learner state may be donated, and no array twice.
    target = jax.tree.map(jnp.copy, params["critic"])
    extra = {"target_critic": target, **init_factors("entropy_coef")}
    return LearnerState(params, opt_state, jnp.zeros((), jnp.int32), extra)


def update(
    config: COMAConfig,
    net: ComaNetworks,
    spec: EnvSpec,
    optimizers: Optimizers,
    schedules: Schedules,
    state: LearnerState,
    trajectory: Trajectory,
    key: Array,
) -> tuple[LearnerState, Metrics]:
    """Returns the state after `num_critic_steps` of the critic and one step of the policy, and metrics. `key` is consumed."""
    batch = make_batch(config, net, spec, state.params, state.extra, trajectory, key)

    def critic_step(progress: Progress, _: None) -> tuple[Progress, Metrics]:
        grads, metrics = critic_gradient(net, progress.params, batch)
        return take_step(optimizers["critic"], progress, grads), metrics

    start = _progress_of(state, "critic")
    critic, critic_metrics = jax.lax.scan(critic_step, start, length=config.num_critic_steps)
    entropy_coef = schedules["entropy_coef"](state.num_updates) * state.extra["entropy_coef_factor"]
    grads, actor_metrics = actor_gradient(net, state.params["actor"], critic.params, batch, entropy_coef)
    actor = take_step(optimizers["actor"], _progress_of(state, "actor"), grads)
    params = {"actor": actor.params, "critic": critic.params}
    opt_state = {"actor": actor.opt_state, "critic": critic.opt_state}
    metrics = {name: jnp.mean(values) for name, values in critic_metrics.items()} | actor_metrics
    return finish(config, schedules, state, params, opt_state, metrics)


def make_batch(
    config: COMAConfig,
    net: ComaNetworks,
    spec: EnvSpec,
    params: Params,
    extra: Any,
    trajectory: Trajectory,
    key: Array,
) -> Batch:
    """Returns the inputs of both losses, with targets by the target network. `key` is consumed."""
    logits, _ = net.unroll(params, trajectory.observation, trajectory.agent_state, trajectory.is_first)
    action, present = next_actions(net, trajectory, logits, key)
    view = team_view(spec, jax.tree.map(lambda leaf: leaf[1:], trajectory.observation), action, present)
    next_value = select_action(net.action_values(extra["target_critic"], view), action)
    ends = (trajectory.terminated, trajectory.truncated, trajectory.valid)
    target = lambda_targets(trajectory.reward, next_value, *ends, discount=config.discount, lambda_=config.td_lambda)
    observation = jax.tree.map(lambda leaf: leaf[:-1], trajectory.observation)
    return Batch(
        observation=observation,
        is_first=trajectory.is_first[:-1],
        agent_state=trajectory.agent_state,
        view=team_view(spec, observation, trajectory.action, trajectory.valid),
        action=trajectory.action,
        behavior_log_prob=trajectory.extras["behavior_log_prob"],
        target=target,
        weight=trajectory.valid.astype(target.dtype),
    )


def next_actions(net: ComaNetworks, trajectory: Trajectory, logits: Array, key: Array) -> tuple[Array, Array]:
    """Returns every agent's action at `observation[1:]`, and whether it is present, [T, B] int32 and bool.

    After an episode's last step and after the trajectory no action counts. There actions are sampled from the newest policy
    (`logits` [T+1, B, A]). `key` is consumed.
    """
    steps, rows = trajectory.action.shape
    keys = jax.random.split(key, (steps, rows))
    sampled = jax.vmap(net.distribution.sample)(logits[1:], keys)
    is_last = jnp.arange(steps)[:, None] == steps - 1
    ends = trajectory.terminated | trajectory.truncated | is_last
    remains = trajectory.valid & ~trajectory.terminated
    action = jnp.where(ends, sampled, jnp.roll(trajectory.action, -1, axis=0))
    return action, jnp.where(ends, remains, jnp.roll(trajectory.valid, -1, axis=0))


def critic_gradient(net: ComaNetworks, critic: Params, batch: Batch) -> tuple[Params, Metrics]:
    """Returns the gradient of the critic's loss at its parameters, and metrics."""
    grads, metrics = jax.grad(partial(critic_loss, net), has_aux=True)(critic, batch)
    return grads, metrics | {"gradient/critic_norm": optax.tree.norm(grads)}


def critic_loss(net: ComaNetworks, critic: Params, batch: Batch) -> tuple[Array, Metrics]:
    """Returns half the squared error of the chosen actions' values, and metrics; steps of weight 0 do not count."""
    mean = partial(returns.weighted_mean, weight=batch.weight)
    value = select_action(net.action_values(critic, batch.view), batch.action)
    loss = 0.5 * mean(jnp.square(batch.target - value))
    explained = returns.explained_variance(batch.target, value, batch.weight)
    return loss, {"loss/critic": loss, "value/explained_variance": explained}


def actor_gradient(
    net: ComaNetworks, actor: Params, critic: Params, batch: Batch, entropy_coef: Array | float
) -> tuple[Params, Metrics]:
    """Returns the gradient of the policy's loss at its parameters, and metrics."""
    grads, metrics = jax.grad(partial(actor_loss, net), has_aux=True)(actor, critic, batch, entropy_coef)
    return grads, metrics | {"gradient/norm": optax.tree.norm(grads)}


def actor_loss(
    net: ComaNetworks, actor: Params, critic: Params, batch: Batch, entropy_coef: Array | float
) -> tuple[Array, Metrics]:
    """Returns policy gradient with counterfactual advantages - entropy bonus, and metrics; weight 0 does not count."""
    mean = partial(returns.weighted_mean, weight=batch.weight)
    logits, _ = net.unroll({"actor": actor}, batch.observation, batch.agent_state, batch.is_first)
    values = net.action_values(critic, batch.view)
    advantage = jax.lax.stop_gradient(counterfactual_advantage(values, logits, batch.action))
    log_prob = net.distribution.log_prob(logits, batch.action)
    policy, entropy = -mean(advantage * log_prob), mean(net.distribution.entropy(logits))
    log_ratio = counted_log_ratio(log_prob, batch.behavior_log_prob, batch.weight > 0)
    return policy - entropy_coef * entropy, {
        "loss/policy": policy,
        "policy/entropy": entropy,
        "policy/approx_kl": mean(approximate_kl(log_ratio)),
        "advantage/deviation": jnp.sqrt(mean(jnp.square(advantage))),
    }


def finish(
    config: COMAConfig,
    schedules: Schedules,
    state: LearnerState,
    params: Params,
    opt_state: Any,
    metrics: Metrics,
) -> tuple[LearnerState, Metrics]:
    """Returns the next learner state, with the target network copied where it is due, and metrics."""
    num_updates = state.num_updates + 1
    due = num_updates % config.target_period == 0
    target = jax.tree.map(partial(jnp.where, due), params["critic"], state.extra["target_critic"])
    metrics |= current_values(schedules, state.num_updates)
    return LearnerState(params, opt_state, num_updates, {**state.extra, "target_critic": target}), metrics


def _progress_of(state: LearnerState | Progress, name: str) -> Progress:
    return Progress(state.params[name], state.opt_state[name], state.num_updates, jnp.zeros((), jnp.int32))


def _gradient_steps(
    config: COMAConfig, net: ComaNetworks, spec: EnvSpec, optimizers: Optimizers, schedules: Schedules
) -> GradientSteps:
    """Returns `update` in parts, for the plan `central`: a step of the critic has zeros as gradient of the policy."""
    blank = {name: jnp.zeros(()) for name in (*_CRITIC_METRICS, *_ACTOR_METRICS, _IS_ACTOR_STEP)}

    def prepare(
        params: Params, extra: Any, trajectory: Trajectory, key: Array, num_updates: Array
    ) -> tuple[tuple[Batch, Array | float], Summary]:
        entropy_coef = schedules["entropy_coef"](num_updates) * extra["entropy_coef_factor"]
        return (make_batch(config, net, spec, params, extra, trajectory, key), entropy_coef), {}

    def gradient(params: Params, prepared: tuple[Batch, Array | float], step: Array) -> tuple[Params, Metrics]:
        batch, entropy_coef = prepared

        def of_critic() -> tuple[Params, Metrics]:
            grads, metrics = critic_gradient(net, params["critic"], batch)
            return {"actor": optax.tree.zeros_like(params["actor"]), "critic": grads}, blank | metrics

        def of_actor() -> tuple[Params, Metrics]:
            grads, metrics = actor_gradient(net, params["actor"], params["critic"], batch, entropy_coef)
            zeros = optax.tree.zeros_like(params["critic"])
            return {"actor": grads, "critic": zeros}, blank | metrics | {_IS_ACTOR_STEP: jnp.ones(())}

        return jax.lax.cond(step < config.num_critic_steps, of_critic, of_actor)

    def apply(progress: Progress, grads: Params, metrics: Metrics) -> Progress:
        is_actor = metrics[_IS_ACTOR_STEP] > 0.5
        params, opt_state = dict(progress.params), dict(progress.opt_state)
        for name, due in (("actor", is_actor), ("critic", ~is_actor)):
            old = _progress_of(progress, name)
            new = jax.tree.map(partial(jnp.where, due), take_step(optimizers[name], old, grads[name]), old)
            params[name], opt_state[name] = new.params, new.opt_state
        return dataclasses.replace(progress, params=params, opt_state=opt_state)

    def end(
        state: LearnerState, progress: Progress, summary: Summary, step_metrics: Metrics
    ) -> tuple[LearnerState, Metrics]:
        metrics = summary | {name: jnp.mean(step_metrics[name][:-1]) for name in _CRITIC_METRICS}
        metrics |= {name: step_metrics[name][-1] for name in _ACTOR_METRICS}
        return finish(config, schedules, state, progress.params, progress.opt_state, metrics)

    return GradientSteps(config.num_critic_steps + 1, prepare, gradient, apply, end)
