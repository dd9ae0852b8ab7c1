"""What DDPG, TD3 and SAC share: critics of continuous actions, learned from replay, and an actor that climbs them.

Source: Lillicrap et al. 2016 (arXiv:1509.02971), algorithm 1. An `ActorPart` says what each makes of it.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import optax

from agents.api import (
    Action,
    AgentState,
    Array,
    LearnerState,
    Metrics,
    Mode,
    Observation,
    Params,
    Replay,
    ReplayAgent,
    Sample,
)
from agents.networks.critics import CriticEnsemble
from agents.ops import returns
from agents.ops.action_scaling import ContinuousActions
from agents.ops.continuous_config import ContinuousConfig
from agents.ops.target_update import polyak
from agents.ops.transitions import Batch, MakeBatch, batch_maker

_ACTOR, _CRITIC = "actor", "critic"
UNIFORM = "acts_uniformly"
"""Name of the parameter that says whether actions are drawn uniformly, whatever the actor says."""


class ExploreFn(Protocol):
    """Actions [B, D] in [-1, 1] as training takes them, from typed keys [B] (consumed)."""

    def __call__(self, actor: Params, observation: Observation, keys: Array, /) -> Array: ...


class NextActionFn(Protocol):
    """What targets bootstrap from: actions [N, D] at the next observations, and what is added to their values, [N].

    Args: actor: newest parameters; own: the part's; observation [N, ...]; key: consumed.
    """

    def __call__(self, actor: Params, own: Any, observation: Observation, key: Array, /) -> tuple[Array, Array]: ...


class ActorLossFn(Protocol):
    """What the actor minimises, and float32 scalar metrics. `critic` are the newest critics; `key` is consumed."""

    def __call__(
        self, actor: Params, own: Any, critic: Params, batch: Batch, key: Array, /
    ) -> tuple[Array, Metrics]: ...


class FollowFn(Protocol):
    """The part's own state after a step of the actor. `metrics` are those of the actor's loss before it."""

    def __call__(self, own: Any, actor: Params, metrics: Metrics, /) -> Any: ...


class ActorPart(NamedTuple):
    """What tells one algorithm from another.

    Attributes:
        init: first parameters of the actor, and the part's own state (a target actor, a temperature); the key is consumed.
        explore: actions of training.
        greedy: (actor, observation [B, ...]) to the best actions [B, D].
        next_action: what targets bootstrap from.
        loss: of the actor.
        follow: what moves after the actor.
        delay: critic steps to one step of the actor, of what follows it, and of the target critics.
    """

    init: Callable[[Array], tuple[Params, Any]]
    explore: ExploreFn
    greedy: Callable[[Params, Observation], Array]
    next_action: NextActionFn
    loss: ActorLossFn
    follow: FollowFn
    delay: int = 1


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ContinuousExtra:
    """What is learned beside the actor. It is not published: acting needs none of it.

    Attributes:
        critic: parameters, [E, ...] each leaf.
        target_critic: likewise.
        own: the part's.
        gradient_steps: int32 scalar, done so far.
    """

    critic: Params
    target_critic: Params
    own: Any
    gradient_steps: Array


class Bound(NamedTuple):
    """An algorithm bound to its configuration and to an environment's spec.

    Attributes:
        name: of the algorithm.
        config: likewise.
        part: what is its own.
        actions: map to [-1, 1]^D.
        critics: the ensemble.
    """

    name: str
    config: ContinuousConfig
    part: ActorPart
    actions: ContinuousActions
    critics: CriticEnsemble

    @property
    def actor_optimizer(self) -> optax.GradientTransformation:
        """Adam."""
        return optax.adam(self.config.actor_learning_rate)

    @property
    def critic_optimizer(self) -> optax.GradientTransformation:
        """Adam."""
        return optax.adam(self.config.critic_learning_rate)


def make_continuous_agent(bound: Bound) -> ReplayAgent:
    """The agent. Raises UserError for priorities without the number of updates over which their correction grows."""
    make_batch = batch_maker(bound.config, bound.actions)
    return ReplayAgent(
        name=bound.name,
        init=partial(init, bound),
        initial_agent_state=lambda num_rows: (),
        act=partial(act, bound),
        update=partial(update, bound, make_batch),
        extras={},
        data=Replay(bound.config.replay, num_steps=bound.config.n_step, refresh=partial(refresh, bound.config)),
    )


def init(bound: Bound, key: Array) -> LearnerState:
    """First learner state. `key` is consumed."""
    actor_key, critic_key = jax.random.split(key)
    actor, own = bound.part.init(actor_key)
    critic = bound.critics.init(critic_key)
    # Copies: a state that is donated must not hold one array twice.
    extra = ContinuousExtra(critic, jax.tree.map(jnp.copy, critic), own, jnp.zeros((), jnp.int32))
    opt_state = {_ACTOR: bound.actor_optimizer.init(actor), _CRITIC: bound.critic_optimizer.init(critic)}
    params = {_ACTOR: actor, UNIFORM: jnp.ones((), bool)}
    return refresh(bound.config, LearnerState(params, opt_state, jnp.zeros((), jnp.int32), extra))


def refresh(config: ContinuousConfig, state: LearnerState) -> LearnerState:
    """The state, whose parameters say whether they act uniformly at random."""
    limit = config.random_updates
    uniform = state.extra.gradient_steps == 0 if limit is None else state.num_updates < limit
    return dataclasses.replace(state, params={**state.params, UNIFORM: uniform})


def act(
    bound: Bound,
    params: Params,
    observation: Observation,
    agent_state: AgentState,
    is_first: Array,
    keys: Array,
    mode: Mode,
) -> tuple[Action, dict[str, Array], AgentState]:
    """Actions of [B, ...] observations: the best ones, or those of training."""
    del is_first
    if mode is Mode.GREEDY:
        unit = bound.part.greedy(params[_ACTOR], observation)
    else:
        keys = jax.vmap(jax.random.split)(keys)
        even = jax.vmap(lambda key: jax.random.uniform(key, (bound.actions.size,), minval=-1.0))(keys[:, 0])
        unit = jnp.where(params[UNIFORM], even, bound.part.explore(params[_ACTOR], observation, keys[:, 1]))
    return bound.actions.from_unit(unit), {}, agent_state


def update(
    bound: Bound, make_batch: MakeBatch, state: LearnerState, sample: Sample, key: Array
) -> tuple[LearnerState, Metrics, Array]:
    """One gradient step of the critics, and one of the actor where it is due. `key` is consumed.

    New priorities are the mean absolute errors of the critics, in reward units; 0 of a step that only reset.
    """
    target_key, actor_key = jax.random.split(key)
    batch = make_batch(sample, state.num_updates)
    target = targets(bound, state, batch, target_key)
    state, error, metrics = _critic_step(bound, state, batch, target)
    state, actor_metrics = _actor_step_if_due(bound, state, batch, actor_key)
    priorities = jnp.mean(jnp.abs(error), axis=0)
    return state, metrics | actor_metrics, priorities


def targets(bound: Bound, state: LearnerState, batch: Batch, key: Array) -> Array:
    """[N] float32: R + g^k (min over the target critics of Q(o', a') + what the part adds). `key` is consumed."""
    extra: ContinuousExtra = state.extra
    action, added = bound.part.next_action(state.params[_ACTOR], extra.own, batch.next_observation, key)
    value = jnp.min(bound.critics.values(extra.target_critic, batch.next_observation, action), axis=0)
    return batch.reward + batch.discount * (value + added)


def critic_loss(bound: Bound, critic: Params, batch: Batch, target: Array) -> tuple[Array, tuple[Array, Array]]:
    """Half the squared errors, averaged over transitions and summed over critics; errors and values [E, N]."""
    value = bound.critics.values(critic, batch.observation, batch.action)
    error = jnp.where(batch.weight > 0, value - target, 0.0)
    mean_of_each = jax.vmap(lambda x: returns.weighted_mean(batch.importance * x, batch.weight))
    return 0.5 * jnp.sum(mean_of_each(jnp.square(error))), (error, value)


def _critic_step(bound: Bound, state: LearnerState, batch: Batch, target: Array) -> tuple[LearnerState, Array, Metrics]:
    """The state with the next critics; the errors [E, N] before it."""
    extra: ContinuousExtra = state.extra
    gradient = jax.value_and_grad(partial(critic_loss, bound), has_aux=True)
    (loss, (error, value)), grads = gradient(extra.critic, batch, target)
    updates, opt_state = bound.critic_optimizer.update(grads, state.opt_state[_CRITIC], extra.critic)
    extra = dataclasses.replace(
        extra, critic=optax.apply_updates(extra.critic, updates), gradient_steps=extra.gradient_steps + 1
    )
    metrics = {
        "loss/critic": loss,
        "value/mean": returns.weighted_mean(jnp.mean(value, axis=0), batch.weight),
        "value/target": returns.weighted_mean(target, batch.weight),
        "gradient/critic_norm": optax.tree.norm(grads),
    }
    state = dataclasses.replace(state, extra=extra, opt_state={**state.opt_state, _CRITIC: opt_state})
    return state, error, metrics


def _actor_step_if_due(bound: Bound, state: LearnerState, batch: Batch, key: Array) -> tuple[LearnerState, Metrics]:
    step = partial(_actor_step, bound, batch=batch, key=key)
    if bound.part.delay == 1:
        return step(state)

    def wait(state: LearnerState) -> tuple[LearnerState, Metrics]:
        # The loss all the same, forwards only: metrics are averaged over gradient steps.
        extra: ContinuousExtra = state.extra
        _, metrics = bound.part.loss(state.params[_ACTOR], extra.own, extra.critic, batch, key)
        return state, metrics

    due = state.extra.gradient_steps % bound.part.delay == 0
    return jax.lax.cond(due, step, wait, state)


def _actor_step(bound: Bound, state: LearnerState, batch: Batch, key: Array) -> tuple[LearnerState, Metrics]:
    """The state with the next actor and all that follows it; metrics from before the step."""
    extra: ContinuousExtra = state.extra
    actor = state.params[_ACTOR]
    grads, metrics = jax.grad(bound.part.loss, has_aux=True)(actor, extra.own, extra.critic, batch, key)
    updates, opt_state = bound.actor_optimizer.update(grads, state.opt_state[_ACTOR], actor)
    actor = optax.apply_updates(actor, updates)
    extra = dataclasses.replace(
        extra,
        target_critic=polyak(extra.target_critic, extra.critic, bound.config.target_step_size),
        own=bound.part.follow(extra.own, actor, metrics),
    )
    state = dataclasses.replace(
        state,
        params={**state.params, _ACTOR: actor},
        opt_state={**state.opt_state, _ACTOR: opt_state},
        extra=extra,
    )
    return state, metrics
