"""COMA as pure functions: counterfactual credit for the agents of a team. Source: Foerster et al. 2018 (arXiv:1705.08926).

A centralised critic says what each action of an agent is worth while the others do what they did; an agent's advantage is the value
of what it did over the mean of what its policy might have done. `docs/algorithms/coma.md` lists every choice made here.
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
    ApplyFn,
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
from agents.networks.coma import ComaNetworks, make_coma_networks
from agents.networks.config import NetworkConfig
from agents.networks.team_view import team_view
from agents.ops import returns, schedules
from agents.ops.counterfactual import counterfactual_advantage, lambda_targets, taken
from agents.ops.gradient_steps import make_apply
from agents.ops.policy_gradient import approximate_kl, clipped_adam, log_ratio_of
from agents.transforms.normalization import NormalisationConfig
from agents.transforms.on_policy_agent import make_on_policy_agent
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import EnvSpec

_ACTOR_STEP = "update/actor_step"  # 1 where a gradient is the policy's, 0 where it is the critic's


@dataclasses.dataclass(frozen=True)
class COMAConfig:
    """Hyper-parameters; defaults of the authors' code (PyMARL) where they carry over.

    Attributes:
        learning_rate: Adam's for the policy, at the start.
        critic_learning_rate: Adam's for the critic, at the start.
        learning_rate_schedule: "constant", or "linear" to 0 after `total_updates`, of both.
        total_updates: updates of the whole run, for the schedule.
        discount: g.
        td_lambda: lambda of the critic's targets.
        num_critic_steps: gradient steps of the critic in an update, each over the whole trajectory; one of the policy follows.
        target_period: updates after which the network that makes the targets becomes what the critic is; 1 takes the critic as
            each update begins.
        entropy_coef: weight of the entropy bonus.
        max_grad_norm: gradients of policy and critic are scaled down to this global norm, each its own.
        adam_epsilon: 1e-5 as in PPO here.
        normalisation: of observations and rewards by running statistics; off by default.
    """

    learning_rate: float = 5e-4
    critic_learning_rate: float = 5e-4
    learning_rate_schedule: schedules.Kind = "constant"
    total_updates: int = 0
    discount: float = 0.99
    td_lambda: float = 0.8
    num_critic_steps: int = 8
    target_period: int = 1
    entropy_coef: float = 0.01
    max_grad_norm: float = 10.0
    adam_epsilon: float = 1e-5
    normalisation: NormalisationConfig = dataclasses.field(default_factory=NormalisationConfig)

    def __post_init__(self) -> None:
        for name in ("num_critic_steps", "target_period"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1: got {getattr(self, name)}")
        for name in ("discount", "td_lambda"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise UserError(f"{name} must lie in [0, 1]: got {getattr(self, name)}")
        for name in ("learning_rate", "critic_learning_rate", "max_grad_norm", "adam_epsilon"):
            if not getattr(self, name) > 0.0:
                raise UserError(f"{name} must be positive: got {getattr(self, name)}")
        if self.entropy_coef < 0.0:
            raise UserError(f"entropy_coef must not be negative: got {self.entropy_coef}")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Prepared:
    """A trajectory ready for its gradients; [T, B, ...] each, but `agent_state` [B, ...].

    Attributes:
        observation: what the policy saw.
        is_first: bool, `observation[t]` begins an episode.
        agent_state: of the policy before the first step.
        view: what the critic sees: see `team_view`.
        action: int32.
        behaviour_log_prob: nats.
        target: of the chosen action's value, reward units.
        weight: 0 where the agent was not there or the step only reset.
    """

    observation: Observation
    is_first: Array
    agent_state: AgentState
    view: Observation
    action: Action
    behaviour_log_prob: Array
    target: Array
    weight: Array


def make_coma(config: COMAConfig, spec: EnvSpec, network: NetworkConfig) -> Agent:
    """COMA for this environment and network.

    Raises:
        UserError: they do not fit: actions other than one Discrete value with as many choices for every agent, for instance.
    """
    net = make_coma_networks(network, spec)
    initial = {"actor": config.learning_rate, "critic": config.critic_learning_rate}
    rates = {
        name: schedules.make_schedule(config.learning_rate_schedule, rate, config.total_updates)
        for name, rate in initial.items()
    }
    optimizers = {name: clipped_adam(rate, config.max_grad_norm, config.adam_epsilon) for name, rate in rates.items()}
    steps = GradientSteps(
        num_steps=config.num_critic_steps + 1,
        prepare=partial(prepare, config, net, spec),
        gradient=partial(gradient, config, net),
        apply=make_coma_apply(optimizers),
        finish=partial(finish, config, rates["actor"]),
    )
    return make_on_policy_agent("coma", config, spec, net, partial(init, net, optimizers), steps)


def init(net: ComaNetworks, optimizers: Mapping[str, optax.GradientTransformation], key: Array) -> LearnerState:
    """First learner state; `extra` is the critic that makes targets. `key` is consumed."""
    params = net.init(key)
    opt_state = {name: optimizer.init(params[name]) for name, optimizer in optimizers.items()}
    # A copy: what a learner state carries may be donated, and no array twice.
    target = jax.tree.map(jnp.copy, params["critic"])
    return LearnerState(params, opt_state, jnp.zeros((), jnp.int32), {"target_critic": target})


def prepare(
    config: COMAConfig, net: ComaNetworks, spec: EnvSpec, params: Params, extra: Any, batch: Trajectory, key: Array
) -> tuple[Prepared, Summary]:
    """The critic's inputs and targets, these by the target network. `key` is consumed."""
    logits, _ = net.unroll(params, batch.observation, batch.agent_state, batch.is_first)
    action, present = following(net, batch, logits, key)
    seen = jax.tree.map(lambda leaf: leaf[1:], batch.observation)
    next_value = taken(net.action_values(extra["target_critic"], team_view(spec, seen, action, present)), action)
    target = lambda_targets(
        batch.reward,
        next_value,
        batch.terminated,
        batch.truncated,
        batch.valid,
        discount=config.discount,
        lambda_=config.td_lambda,
    )
    observation = jax.tree.map(lambda leaf: leaf[:-1], batch.observation)
    prepared = Prepared(
        observation=observation,
        is_first=batch.is_first[:-1],
        agent_state=batch.agent_state,
        view=team_view(spec, observation, batch.action, batch.valid),
        action=batch.action,
        behaviour_log_prob=batch.extras["behaviour_log_prob"],
        target=target,
        weight=batch.valid.astype(target.dtype),
    )
    return prepared, {}


def following(net: ComaNetworks, batch: Trajectory, logits: Array, key: Array) -> tuple[Array, Array]:
    """What every agent does next, and whether it is there, [T, B] int32 and bool: at `observation[1:]`.

    Where an episode is cut and at the trajectory's end nothing was done that counts: there actions are drawn from the newest
    policy (`logits` [T+1, B, A]). `key` is consumed.
    """
    steps, rows = batch.action.shape
    keys = jax.random.split(key, (steps, rows))
    drawn = jax.vmap(net.distribution.sample)(logits[1:], keys)
    is_last = jnp.arange(steps)[:, None] == steps - 1
    nothing_follows = batch.terminated | batch.truncated | is_last
    remains = batch.valid & ~batch.terminated
    action = jnp.where(nothing_follows, drawn, jnp.roll(batch.action, -1, axis=0))
    return action, jnp.where(nothing_follows, remains, jnp.roll(batch.valid, -1, axis=0))


def gradient(
    config: COMAConfig, net: ComaNetworks, params: Params, prepared: Prepared, step: Array
) -> tuple[Params, Metrics]:
    """Gradient number `step`: the critic's, and the policy's last; zeros for the other of the two."""
    blank = {name: jnp.zeros(()) for name in (*_CRITIC_METRICS, *_ACTOR_METRICS, _ACTOR_STEP)}

    def of_critic(params: Params) -> tuple[Params, Metrics]:
        grads, found = jax.grad(partial(critic_loss, net), has_aux=True)(params, prepared)
        return grads, blank | found | {"gradient/critic_norm": optax.tree.norm(grads)}

    def of_actor(params: Params) -> tuple[Params, Metrics]:
        grads, found = jax.grad(partial(actor_loss, config, net), has_aux=True)(params, prepared)
        return grads, blank | found | {"gradient/norm": optax.tree.norm(grads), _ACTOR_STEP: jnp.ones(())}

    return jax.lax.cond(step < config.num_critic_steps, of_critic, of_actor, params)


_CRITIC_METRICS = ("loss/critic", "value/explained_variance", "gradient/critic_norm")
_ACTOR_METRICS = ("loss/policy", "policy/entropy", "policy/approx_kl", "advantage/deviation", "gradient/norm")


def critic_loss(net: ComaNetworks, params: Params, prepared: Prepared) -> tuple[Array, Metrics]:
    """Half the squared error of the chosen actions' values; steps of weight 0 do not count."""
    mean = partial(returns.weighted_mean, weight=prepared.weight)
    value = taken(net.action_values(params["critic"], prepared.view), prepared.action)
    error = mean(jnp.square(prepared.target - value))
    explained = returns.explained_variance(prepared.target, value, prepared.weight)
    return 0.5 * error, {"loss/critic": 0.5 * error, "value/explained_variance": explained}


def actor_loss(config: COMAConfig, net: ComaNetworks, params: Params, prepared: Prepared) -> tuple[Array, Metrics]:
    """Policy gradient with counterfactual advantages - entropy bonus; steps of weight 0 do not count."""
    mean = partial(returns.weighted_mean, weight=prepared.weight)
    logits, _ = net.unroll(params, prepared.observation, prepared.agent_state, prepared.is_first)
    values = net.action_values(params["critic"], prepared.view)
    advantage = jax.lax.stop_gradient(counterfactual_advantage(values, logits, prepared.action))
    log_prob = net.distribution.log_prob(logits, prepared.action)
    policy = -mean(advantage * log_prob)
    entropy = mean(net.distribution.entropy(logits))
    log_ratio = log_ratio_of(log_prob, prepared.behaviour_log_prob, prepared.weight > 0)
    metrics = {
        "loss/policy": policy,
        "policy/entropy": entropy,
        "policy/approx_kl": mean(approximate_kl(log_ratio)),
        "advantage/deviation": jnp.sqrt(mean(jnp.square(advantage))),
    }
    return policy - config.entropy_coef * entropy, metrics


def make_coma_apply(optimizers: Mapping[str, optax.GradientTransformation]) -> ApplyFn:
    """Returns a function that steps the policy's or the critic's optimizer, whichever the gradient is of.

    The other one stays as it is.
    """
    steps = {name: make_apply(optimizer) for name, optimizer in optimizers.items()}

    def apply(progress: Progress, grads: Params, metrics: Metrics) -> Progress:
        is_actor = metrics[_ACTOR_STEP] > 0.5
        params, opt_state = dict(progress.params), dict(progress.opt_state)
        for name, step in steps.items():
            old = dataclasses.replace(progress, params=params[name], opt_state=opt_state[name])
            due = is_actor if name == "actor" else ~is_actor
            new = jax.tree.map(partial(jnp.where, due), step(old, grads[name], metrics), old)
            params[name], opt_state[name] = new.params, new.opt_state
        return dataclasses.replace(progress, params=params, opt_state=opt_state)

    return apply


def finish(
    config: COMAConfig,
    schedule: optax.Schedule,
    state: LearnerState,
    progress: Progress,
    summary: Summary,
    step_metrics: Metrics,
) -> tuple[LearnerState, Metrics]:
    """The next learner state; metrics of the critic are means over its steps."""
    num_updates = state.num_updates + 1
    due = num_updates % config.target_period == 0
    critic = progress.params["critic"]
    target = jax.tree.map(partial(jnp.where, due), critic, state.extra["target_critic"])
    result = dict(summary)
    result |= {name: jnp.mean(step_metrics[name][:-1]) for name in _CRITIC_METRICS}
    result |= {name: step_metrics[name][-1] for name in _ACTOR_METRICS}
    result["learning_rate"] = jnp.asarray(schedule(state.num_updates), jnp.float32)
    return LearnerState(progress.params, progress.opt_state, num_updates, {"target_critic": target}), result
