"""MADDPG: actors of their own observations climb critics that see the whole team. Source: Lowe et al. 2017 (arXiv:1706.02275).

Each agent has its own reward, so that teams, rivals and both together can be learned. `docs/algorithms/maddpg.md` lists choices.
"""

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

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
    ReplayConfig,
    Sample,
    Trajectory,
)
from agents.continuous_control import UNIFORM, refresh
from agents.networks.config import NetworkConfig, require_plain_network
from agents.networks.maddpg import MaddpgNetworks, joint_actions, make_maddpg_networks, with_own
from agents.networks.team_actions import TeamActions, make_team_actions
from agents.ops import returns
from agents.ops.continuous_config import ContinuousConfig
from agents.ops.target_update import polyak
from agents.ops.team_rows import by_agent
from agents.team_q import WeighFn, make_weigh
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import EnvSpec

_ACTOR, _CRITIC = "actor", "critic"


@dataclasses.dataclass(frozen=True)
class MADDPGConfig(ContinuousConfig):
    """Hyper-parameters; defaults of the authors' code where they carry over. `n_step` is 1: targets look one step ahead.

    Attributes:
        share_parameters: whether all agents have the same weights, and see which of them they are; the paper's have their own.
        exploration_noise: deviation of the Gaussian noise that training adds to continuous actions, scaled to [-1, 1].
        temperature: of the softmax that stands for a discrete action in gradients.
        output_penalty: weight of the mean square of the policies' outputs, which keeps them from saturating.
        max_grad_norm: gradients are scaled down to this global norm, those of all actors and of all critics.
    """

    replay: ReplayConfig = dataclasses.field(
        default_factory=lambda: ReplayConfig(1_000_000, batch_size=1024, min_size=25_000, samples_per_insert=10.0)
    )
    discount: float = 0.95
    target_step_size: float = 0.01
    actor_learning_rate: float = 1e-2
    critic_learning_rate: float = 1e-2
    share_parameters: bool = False
    exploration_noise: float = 0.1
    temperature: float = 1.0
    output_penalty: float = 1e-3
    max_grad_norm: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_step != 1:
            raise UserError(f"n_step: MADDPG's targets look one step ahead: expected 1, got {self.n_step}")
        for name in ("temperature", "max_grad_norm"):
            if not getattr(self, name) > 0.0:
                raise UserError(f"{name} must be positive: got {getattr(self, name)}")
        for name in ("exploration_noise", "output_penalty"):
            if not getattr(self, name) >= 0.0:
                raise UserError(f"{name} must not be negative: got {getattr(self, name)}")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class MADDPGExtra:
    """What is learned beside the policies; acting needs none of it.

    Attributes:
        critic: parameters.
        target_actor: likewise.
        target_critic: likewise.
        gradient_steps: int32 scalar, done so far.
    """

    critic: Params
    target_actor: Params
    target_critic: Params
    gradient_steps: Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TeamBatch:
    """Transitions of N environments, B = N n rows.

    Attributes:
        observation: [B, ...] each leaf.
        next_observation: [B, ...] each leaf.
        action: [B, D] float32 vectors.
        reward: [B] float32, each row's own.
        present: [B] bool, the row's agent acted.
        remains: [B] bool, it acted and its episode has a value to come.
        importance: [B] float32 in (0, 1], of the environment's window; 1 without priorities.
    """

    observation: Observation
    next_observation: Observation
    action: Array
    reward: Array
    present: Array
    remains: Array
    importance: Array


class _Bound(NamedTuple):
    config: MADDPGConfig
    num_agents: int
    net: MaddpgNetworks
    actions: TeamActions
    optimizers: Mapping[str, optax.GradientTransformation]
    weigh: WeighFn


def make_maddpg(config: MADDPGConfig, spec: EnvSpec, network: NetworkConfig) -> ReplayAgent:
    """MADDPG for this environment and network. Raises UserError where they do not fit."""
    require_plain_network("MADDPG", network)
    actions = make_team_actions(spec, config.exploration_noise, config.temperature)
    net = make_maddpg_networks(network, spec, actions.size, shared=config.share_parameters)
    rates = {_ACTOR: config.actor_learning_rate, _CRITIC: config.critic_learning_rate}
    optimizers = {
        name: optax.chain(optax.clip_by_global_norm(config.max_grad_norm), optax.adam(rate))
        for name, rate in rates.items()
    }
    weigh = make_weigh(config.replay, config.importance_exponent, config.total_updates)
    bound = _Bound(config, spec.rows_per_env, net, actions, optimizers, weigh)
    return ReplayAgent(
        name="maddpg",
        init=partial(init, bound),
        initial_agent_state=lambda num_rows: (),
        act=partial(act, bound),
        update=partial(update, bound),
        extras={},
        data=Replay(config.replay, num_steps=1, rows_per_window=bound.num_agents, refresh=partial(refresh, config)),
    )


def init(bound: _Bound, key: Array) -> LearnerState:
    """First learner state. `key` is consumed."""
    actor_key, critic_key = jax.random.split(key)
    nets = {_ACTOR: bound.net.init_policy(actor_key), _CRITIC: bound.net.init_critic(critic_key)}
    opt_state = {name: optimizer.init(nets[name]) for name, optimizer in bound.optimizers.items()}
    # Copies: a state that is donated must not hold one array twice.
    targets = jax.tree.map(jnp.copy, nets)
    extra = MADDPGExtra(nets[_CRITIC], targets[_ACTOR], targets[_CRITIC], jnp.zeros((), jnp.int32))
    params = {_ACTOR: nets[_ACTOR], UNIFORM: jnp.ones((), bool)}
    return refresh(bound.config, LearnerState(params, opt_state, jnp.zeros((), jnp.int32), extra))


def act(
    bound: _Bound,
    params: Params,
    observation: Observation,
    agent_state: AgentState,
    is_first: Array,
    keys: Array,
    mode: Mode,
) -> tuple[Action, dict[str, Array], AgentState]:
    """Actions of [B, ...] observations of whole environments, each row's by its own alone."""
    del is_first
    outputs, legal = bound.net.policy(params[_ACTOR], observation), bound.net.legal(observation)
    if mode is Mode.GREEDY:
        chosen = bound.actions.best(outputs, legal)
    else:
        keys = jax.vmap(jax.random.split)(keys)
        explored = bound.actions.explore(outputs, legal, keys[:, 0])
        chosen = jnp.where(params[UNIFORM], bound.actions.uniform(legal, keys[:, 1]), explored)
    return bound.actions.decode(chosen), {}, agent_state


def make_batch(bound: _Bound, sample: Sample, num_updates: Array) -> TeamBatch:
    """The transitions of windows of one step."""
    window: Trajectory = sample.trajectory
    present = window.valid[0]
    return TeamBatch(
        observation=jax.tree.map(lambda leaf: leaf[0], window.observation),
        next_observation=jax.tree.map(lambda leaf: leaf[1], window.observation),
        action=bound.actions.encode(jax.tree.map(lambda leaf: leaf[0], window.action)),
        reward=window.reward[0],
        present=present,
        remains=present & ~window.terminated[0],
        importance=jnp.repeat(bound.weigh(sample, num_updates), bound.num_agents),
    )


def update(bound: _Bound, state: LearnerState, sample: Sample, key: Array) -> tuple[LearnerState, Metrics, Array]:
    """One gradient step of all critics, then one of all actors, and what follows them. `key` is consumed.

    New priorities are the mean absolute errors of the critics of the agents that are there, in reward units.
    """
    batch, extra = make_batch(bound, sample, state.num_updates), state.extra
    params = {_ACTOR: state.params[_ACTOR], _CRITIC: extra.critic}
    opt_state = dict(state.opt_state)

    def step(name: str, grads: Params) -> None:
        changes, opt_state[name] = bound.optimizers[name].update(grads, opt_state[name], params[name])
        params[name] = optax.apply_updates(params[name], changes)

    target = targets(bound, extra.target_actor, extra.target_critic, batch)
    grads, (error, metrics) = jax.grad(partial(critic_loss, bound), has_aux=True)(params[_CRITIC], batch, target)
    step(_CRITIC, grads)
    metrics["gradient/critic_norm"] = optax.tree.norm(grads)
    grads, found = jax.grad(partial(actor_loss, bound), has_aux=True)(params[_ACTOR], params[_CRITIC], batch, key)
    step(_ACTOR, grads)
    metrics |= found | {"gradient/norm": optax.tree.norm(grads)}
    rate = bound.config.target_step_size
    extra = MADDPGExtra(
        critic=params[_CRITIC],
        target_actor=polyak(extra.target_actor, params[_ACTOR], rate),
        target_critic=polyak(extra.target_critic, params[_CRITIC], rate),
        gradient_steps=extra.gradient_steps + 1,
    )
    present = by_agent(bound.num_agents, 0, batch.present)
    absolute = jnp.sum(by_agent(bound.num_agents, 0, jnp.abs(error)), axis=1) / jnp.maximum(jnp.sum(present, axis=1), 1)
    learned: dict[str, Any] = {**state.params, _ACTOR: params[_ACTOR]}
    return LearnerState(learned, opt_state, state.num_updates, extra), metrics, absolute


def targets(bound: _Bound, actor: Params, critic: Params, batch: TeamBatch) -> Array:
    """[B] float32: r_i + g Q_i'(x', mu'(o')), the reward alone where the agent's episode is over."""
    seen = batch.next_observation
    best = bound.actions.best(bound.net.policy(actor, seen), bound.net.legal(seen))
    actions = joint_actions(bound.num_agents, best, batch.remains)
    value = bound.net.value(critic, seen, batch.remains, actions)
    return batch.reward + jnp.where(batch.remains, bound.config.discount * value, 0.0)


def critic_loss(bound: _Bound, critic: Params, batch: TeamBatch, target: Array) -> tuple[Array, tuple[Array, Metrics]]:
    """Half the squared errors of all agents that are there; errors [B], 0 of the others."""
    actions = joint_actions(bound.num_agents, batch.action, batch.present)
    value = bound.net.value(critic, batch.observation, batch.present, actions)
    weight = batch.present.astype(value.dtype)
    error = jnp.where(batch.present, target - value, 0.0)
    loss = 0.5 * returns.weighted_mean(batch.importance * jnp.square(error), weight)
    return loss, (error, {"loss/critic": loss, "value/mean": returns.weighted_mean(value, weight)})


def actor_loss(bound: _Bound, actor: Params, critic: Params, batch: TeamBatch, key: Array) -> tuple[Array, Metrics]:
    """-E[Q_i(x, a)] with a_i from agent i's policy and the others' actions as they were. `key` is consumed."""
    outputs = bound.net.policy(actor, batch.observation)
    chosen = bound.actions.relaxed(outputs, bound.net.legal(batch.observation), key)
    actions = with_own(bound.num_agents, joint_actions(bound.num_agents, batch.action, batch.present), chosen)
    value = bound.net.value(critic, batch.observation, batch.present, actions)
    weight = batch.present.astype(value.dtype)
    loss = -returns.weighted_mean(value, weight)
    size = returns.weighted_mean(jnp.mean(jnp.square(outputs), axis=-1), weight)
    return loss + bound.config.output_penalty * size, {"loss/actor": loss, "policy/output_square": size}
