"""Multi-agent DDPG (MADDPG): actors see their own observations; critics see the whole team.

Source: Lowe et al. 2017 (arXiv:1706.02275). Each agent has its own reward, so the agents may cooperate, compete, or both.
`docs/algorithms/maddpg.md` lists every deviation.
"""

import dataclasses
from functools import partial
from typing import NamedTuple

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
)
from agents.binding import keeps_binding
from agents.networks.config import NetworkConfig, validate_plain_network
from agents.networks.maddpg import MaddpgNetworks, joint_actions, make_maddpg_networks, with_own
from agents.networks.team_actions import TeamActions, make_team_actions
from agents.ops import validate
from agents.ops.action_scaling import sync_random_acting
from agents.ops.gradient_descent import descend
from agents.ops.importance_weights import importance_exponent_schedule, importance_weights
from agents.ops.optimizers import OptimizerConfig, make_optimizers
from agents.ops.returns import weighted_mean
from agents.ops.schedules import CONSTANT, Schedule, ScheduleConfig, Schedules, current_values, learning_rates
from agents.ops.target_update import polyak
from agents.ops.team_rows import by_agent
from agents.settings import complete, reject_other
from envpool_bridge.spec.specs import DiscreteSpec, EnvSpec


@dataclasses.dataclass(frozen=True)
class MADDPGConfig:
    """Hyper-parameters; defaults of the authors' code where they apply.

    Attributes:
        replay: Sizes, rates and priorities of the replay buffer.
        total_updates: Trajectories of the whole run; needed only by schedules, and by priorities, whose correction grows.
        discount: g, per env step.
        tau: Step size of the target networks towards the learned ones.
        actor_learning_rate: Initial learning rate of the actors.
        critic_learning_rate: Initial learning rate of the critics.
        learning_rate_schedule: Change of all learning rates over the run.
        optimizer: Settings of all optimizers, those of all actors and of all critics; gradients of each are clipped together.
        random_updates: Trajectories collected by uniformly random actions. None: all before the first gradient step.
        importance_sampling_exponent: beta of prioritized replay at the first update; it grows to 1 over the run.
        share_parameters: All agents have the same weights, and the index of the agent is an input; the paper's have their own.
        exploration_noise: Standard deviation of the Gaussian noise on continuous actions, scaled to [-1, 1].
        temperature: Temperature of the softmax that relaxes a discrete action in gradients.
        output_penalty: Weight of the mean square of the policies' outputs, which prevents saturation.
    """

    replay: ReplayConfig = dataclasses.field(
        default_factory=lambda: ReplayConfig(
            1_000_000, batch_size=1024, min_size=25_000, gradient_steps_per_env_step=5 / 512
        )
    )
    total_updates: int = 0
    discount: float = 0.95
    tau: float = 0.01
    actor_learning_rate: float = 1e-2
    critic_learning_rate: float = 1e-2
    learning_rate_schedule: ScheduleConfig = CONSTANT
    optimizer: OptimizerConfig = OptimizerConfig(epsilon=1e-8, max_grad_norm=0.5)
    random_updates: int | None = None
    importance_sampling_exponent: float = 0.4
    share_parameters: bool = False
    exploration_noise: float = 0.1
    temperature: float = 1.0
    output_penalty: float = 1e-3

    def __post_init__(self) -> None:
        complete(self)
        validate.positive(self, "actor_learning_rate", "critic_learning_rate", "temperature")
        validate.not_negative(self, "exploration_noise", "output_penalty")
        validate.fraction(self, "discount", "importance_sampling_exponent")
        validate.fraction(self, "tau", above_zero=True)
        validate.random_updates(self)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class MADDPGExtra:
    """Learner state of MADDPG apart from the policies; acting does not need it.

    Attributes:
        critic: Parameters.
        target_actor: Parameters.
        target_critic: Parameters.
        num_gradient_steps: int32 scalar, gradient steps taken so far.
    """

    critic: Params
    target_actor: Params
    target_critic: Params
    num_gradient_steps: Array


class TeamBatch(NamedTuple):
    """Transitions of N environments of n agents, B = N n rows.

    Attributes:
        observation: [B, ...] each leaf.
        next_observation: [B, ...] each leaf.
        action: [B, D] float32 vectors.
        reward: [B] float32, each row's own.
        present: [B] bool, the row's agent acted.
        remains: [B] bool, the row's agent acted and its episode continues.
        importance: [B] float32 in [0, 1], of the environment's window; 1 without priorities, 0 if no agent is present.
    """

    observation: Observation
    next_observation: Observation
    action: Array
    reward: Array
    present: Array
    remains: Array
    importance: Array


class MADDPG(NamedTuple):
    """MADDPG, bound to its configuration and a team's spec.

    Attributes:
        config: Hyper-parameters.
        num_agents: n, agents of the team.
        net: Policies and critics.
        actions: Encoding of actions as vectors [D], and random ones.
        beta: Importance-sampling exponent as a function of `num_updates`.
        rates: Learning rates of "actor" and "critic" as functions of `num_updates`.
    """

    config: MADDPGConfig
    num_agents: int
    net: MaddpgNetworks
    actions: TeamActions
    beta: Schedule
    rates: Schedules


@keeps_binding
def make_maddpg(config: MADDPGConfig, spec: EnvSpec, network: NetworkConfig) -> ReplayAgent:
    """Returns a MADDPG agent; raises UserError where configuration, environment and network do not fit."""
    validate_plain_network("MADDPG", network)
    if not isinstance(spec.action, DiscreteSpec):
        reject_other("temperature", config.temperature, 1.0, "actions are continuous")
    actions = make_team_actions(spec, config.exploration_noise, config.temperature)
    net = make_maddpg_networks(network, spec, actions.size, shared=config.share_parameters)
    beta = importance_exponent_schedule(config.replay, config.importance_sampling_exponent, config.total_updates)
    maddpg = MADDPG(config, spec.rows_per_env, net, actions, beta, learning_rates(config, "actor", "critic"))
    sync = partial(sync_random_acting, config.random_updates)
    return ReplayAgent(
        name="maddpg",
        init=partial(init, maddpg),
        initial_agent_state=lambda num_rows: (),
        act=partial(act, maddpg),
        update=partial(update, maddpg),
        extras={},
        data=Replay(config.replay, sequence_length=1, agents_per_window=spec.rows_per_env, sync_acting_params=sync),
    )


def init(maddpg: MADDPG, key: Array) -> LearnerState:
    """Returns the initial learner state. `key` is consumed."""
    actor_key, critic_key = jax.random.split(key)
    learned = {"actor": maddpg.net.init_policy(actor_key), "critic": maddpg.net.init_critic(critic_key)}
    optimizers = make_optimizers(maddpg.config.optimizer, maddpg.rates)
    opt_state = {name: optimizer.init(learned[name]) for name, optimizer in optimizers.items()}
    # Copied: the state is donated, and no buffer may occur in it twice.
    target = jax.tree.map(jnp.copy, learned)
    extra = MADDPGExtra(learned["critic"], target["actor"], target["critic"], jnp.zeros((), jnp.int32))
    state = LearnerState({"actor": learned["actor"]}, opt_state, jnp.zeros((), jnp.int32), extra)
    return sync_random_acting(maddpg.config.random_updates, state)


def act(
    maddpg: MADDPG,
    params: Params,
    observation: Observation,
    agent_state: AgentState,
    is_first: Array,
    keys: Array,
    mode: Mode,
) -> tuple[Action, dict[str, Array], AgentState]:
    """Returns actions [B, ...] of whole environments; each row's depends on its own observation only."""
    del is_first
    outputs, legal = maddpg.net.policy(params["actor"], observation), maddpg.net.legal(observation)
    if mode is Mode.GREEDY:
        return maddpg.actions.decode(maddpg.actions.best(outputs, legal)), {}, agent_state
    keys = jax.vmap(jax.random.split)(keys)
    explored = maddpg.actions.explore(outputs, legal, keys[:, 0])
    vector = jnp.where(params["acts_uniformly"], maddpg.actions.uniform(legal, keys[:, 1]), explored)
    return maddpg.actions.decode(vector), {}, agent_state


def update(maddpg: MADDPG, state: LearnerState, sample: Sample, key: Array) -> tuple[LearnerState, Metrics, Array]:
    """Returns the state after one gradient step, metrics, and the windows' priorities. `key` is consumed.

    The critics learn first, then the actors, then the targets follow. Priorities are the mean absolute errors of the critics of the
    agents that are present, in reward units.
    """
    extra: MADDPGExtra = state.extra
    optimizer = make_optimizers(maddpg.config.optimizer, maddpg.rates)
    actor, opt_state, now = state.params["actor"], dict(state.opt_state), state.num_updates
    batch = team_batch(maddpg, sample, now)

    target = targets(maddpg, extra.target_actor, extra.target_critic, batch)
    grads, (error, metrics) = jax.grad(partial(critic_loss, maddpg), has_aux=True)(extra.critic, batch, target)
    critic, opt_state["critic"] = descend(optimizer["critic"], grads, opt_state["critic"], extra.critic, now)
    metrics |= {"gradient/critic_norm": optax.tree.norm(grads)}

    grads, actor_metrics = jax.grad(partial(actor_loss, maddpg), has_aux=True)(actor, critic, batch, key)
    actor, opt_state["actor"] = descend(optimizer["actor"], grads, opt_state["actor"], actor, now)
    metrics |= actor_metrics | {"gradient/norm": optax.tree.norm(grads)}
    metrics |= current_values({"learning_rate": maddpg.rates["actor"]}, now)

    tau = maddpg.config.tau
    target_actor, target_critic = polyak(extra.target_actor, actor, tau), polyak(extra.target_critic, critic, tau)
    extra = MADDPGExtra(critic, target_actor, target_critic, extra.num_gradient_steps + 1)
    state = LearnerState({**state.params, "actor": actor}, opt_state, now, extra)
    num_present = jnp.sum(by_agent(maddpg.num_agents, 0, batch.present), axis=1)
    priority = jnp.sum(by_agent(maddpg.num_agents, 0, jnp.abs(error)), axis=1) / jnp.maximum(num_present, 1)
    return state, metrics, priority


def team_batch(maddpg: MADDPG, sample: Sample, num_updates: Array) -> TeamBatch:
    """Returns the transitions of windows of one step."""
    window = sample.trajectory
    present = window.valid[0]
    counted = jnp.any(by_agent(maddpg.num_agents, 0, present), axis=1)
    importance = importance_weights(sample.probability, counted, maddpg.beta(num_updates))
    return TeamBatch(
        observation=jax.tree.map(lambda leaf: leaf[0], window.observation),
        next_observation=jax.tree.map(lambda leaf: leaf[1], window.observation),
        action=maddpg.actions.encode(jax.tree.map(lambda leaf: leaf[0], window.action)),
        reward=window.reward[0],
        present=present,
        remains=present & ~window.terminated[0],
        importance=jnp.repeat(importance, maddpg.num_agents),
    )


def targets(maddpg: MADDPG, actor: Params, critic: Params, batch: TeamBatch) -> Array:
    """Returns [B] float32: r_i + g Q_i'(x', mu'(o')), or the reward alone where the agent's episode ended."""
    observation = batch.next_observation
    best = maddpg.actions.best(maddpg.net.policy(actor, observation), maddpg.net.legal(observation))
    actions = joint_actions(maddpg.num_agents, best, batch.remains)
    value = maddpg.net.value(critic, observation, batch.remains, actions)
    return batch.reward + jnp.where(batch.remains, maddpg.config.discount * value, 0.0)


def critic_loss(maddpg: MADDPG, critic: Params, batch: TeamBatch, target: Array) -> tuple[Array, tuple[Array, Metrics]]:
    """Returns half the mean squared error of the agents that are present; the errors [B], 0 of absent agents; and metrics."""
    actions = joint_actions(maddpg.num_agents, batch.action, batch.present)
    value = maddpg.net.value(critic, batch.observation, batch.present, actions)
    weight = batch.present.astype(value.dtype)
    error = jnp.where(batch.present, target - value, 0.0)
    loss = 0.5 * weighted_mean(batch.importance * jnp.square(error), weight)
    return loss, (error, {"loss/critic": loss, "value/mean": weighted_mean(value, weight)})


def actor_loss(maddpg: MADDPG, actor: Params, critic: Params, batch: TeamBatch, key: Array) -> tuple[Array, Metrics]:
    """Returns -E[Q_i(x, a)] plus the penalty of outputs; a_i is agent i's action, the others act as recorded. Consumes `key`."""
    outputs = maddpg.net.policy(actor, batch.observation)
    chosen = maddpg.actions.relaxed(outputs, maddpg.net.legal(batch.observation), key)
    actions = with_own(maddpg.num_agents, joint_actions(maddpg.num_agents, batch.action, batch.present), chosen)
    value = maddpg.net.value(critic, batch.observation, batch.present, actions)
    weight = batch.present.astype(value.dtype)
    loss = -weighted_mean(value, weight)
    size = weighted_mean(jnp.mean(jnp.square(outputs), axis=-1), weight)
    return loss + maddpg.config.output_penalty * size, {"loss/actor": loss, "policy/output_l2": size}
