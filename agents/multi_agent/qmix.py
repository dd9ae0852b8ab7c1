"""QMIX: a team's value increases with each of its agents' values, in a way that depends on the state.

Source: Rashid et al. 2018 (arXiv:1803.11485). Each agent can maximize its own value alone, because the action that is best for it
is best for the team. The contribution of an agent's value may depend on the other agents' values and on the state.
`docs/algorithms/qmix.md` lists every deviation. `agents.multi_agent.vdn` is the same algorithm with a sum of values.
"""

import dataclasses
from functools import partial
from typing import Literal, NamedTuple

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
from agents.binding import keeps_binding
from agents.networks.config import NetworkConfig
from agents.networks.mixer import Mixer, make_monotone_mixer
from agents.networks.team_values import TeamValues, make_team_values
from agents.ops import validate
from agents.ops.epsilon_greedy import epsilon_greedy, epsilon_schedule, greedy
from agents.ops.gradient_descent import descend
from agents.ops.importance_weights import importance_exponent_schedule, importance_weights
from agents.ops.optimizers import OptimizerConfig, make_optimizer
from agents.ops.returns import weighted_mean
from agents.ops.schedules import CONSTANT, Schedule, ScheduleConfig, current_values, make_schedule, sync_scheduled
from agents.ops.target_update import periodic, polyak
from agents.ops.td_errors import window_priority
from agents.ops.team_rows import by_agent
from agents.ops.team_targets import team_steps, team_targets
from agents.settings import complete, reject_other
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import EnvSpec

_PRIORITY_ETA = 0.9  # eta of Kapturowski et al. 2019, section 2.3


@dataclasses.dataclass(frozen=True)
class TeamQConfig:
    """Hyper-parameters of QMIX and VDN; defaults of the code of QMIX's authors (PyMARL) where they apply.

    Attributes:
        learning_rate: Initial learning rate.
        learning_rate_schedule: Change of the learning rate over the run.
        total_updates: Trajectories of the whole run, for schedules, epsilon and importance weights.
        discount: g, per env step.
        n_step: Rewards of a return before it bootstraps.
        double: The newest values choose the actions that the target network evaluates.
        target_update_period: Gradient steps between two updates of the target network.
        tau: Step size of the target network towards the learned one; 1 copies.
        optimizer: Settings of the optimizer.
        share_parameters: All agents have the same weights, and the index of the agent is an input.
        sequence_length: Steps of a window that are learned; more than one for a recurrent policy.
        burn_in: Steps before the learned ones that only update the policy's state, without gradient.
        window_start: Windows start at "any" step, or only at the start of an "episode".
        stride: Steps between the starts of windows at "any" step; for a recurrent policy a multiple of the rollout length.
        importance_sampling_exponent: beta of prioritized replay at the first update; it grows to 1 over the run.
        epsilon_start: Probability of a random action at the first update.
        epsilon_end: Probability of a random action after its linear decay.
        epsilon_decay_fraction: Fraction of the run over which epsilon decays.
        replay: Sizes, rates and priorities of the replay buffer.
    """

    learning_rate: float = 5e-4
    learning_rate_schedule: ScheduleConfig = CONSTANT
    total_updates: int = 0
    discount: float = 0.99
    n_step: int = 1
    double: bool = True
    target_update_period: int = 200
    tau: float = 1.0
    optimizer: OptimizerConfig = OptimizerConfig(max_grad_norm=10.0)
    share_parameters: bool = True
    sequence_length: int = 1
    burn_in: int = 0
    window_start: Literal["any", "episode"] = "any"
    stride: int = 1
    importance_sampling_exponent: float = 0.4
    epsilon_start: float = 1.0
    epsilon_end: float = 0.05
    epsilon_decay_fraction: float = 0.5
    replay: ReplayConfig = dataclasses.field(
        default_factory=lambda: ReplayConfig(batch_size=32, gradient_steps_per_env_step=0.25)
    )

    def __post_init__(self) -> None:
        complete(self)
        validate.choices(self)
        validate.at_least_one(self, "n_step", "target_update_period", "sequence_length", "stride")
        validate.fraction(self, "discount", "importance_sampling_exponent", "epsilon_start", "epsilon_end")
        validate.fraction(self, "tau", "epsilon_decay_fraction", above_zero=True)
        validate.positive(self, "learning_rate")
        validate.not_negative(self, "burn_in")

    @property
    def window_length(self) -> int:
        """L, steps of a window: the last learned step sees `n_step` rewards too."""
        return self.burn_in + self.sequence_length + self.n_step - 1


@dataclasses.dataclass(frozen=True)
class QMIXConfig(TeamQConfig):
    """Hyper-parameters of TeamQConfig and of the mixer.

    Attributes:
        mixing_size: Width of the mixing layer; 32 in the paper.
    """

    mixing_size: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.at_least_one(self, "mixing_size")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TeamQExtra:
    """Learner state apart from the agents' parameters and the optimizer.

    Attributes:
        mixer: Parameters of the mixer, which acting does not need.
        target: Parameters of the target networks, {"agents": ..., "mixer": ...}.
        num_gradient_steps: int32 scalar, gradient steps taken so far.
    """

    mixer: Params
    target: Params
    num_gradient_steps: Array


class TeamQ(NamedTuple):
    """QMIX or VDN, bound to its configuration and a team's spec.

    Attributes:
        config: Hyper-parameters.
        num_agents: n, agents of the team.
        net: Values of the agents and of the team.
        optimizer: Optimizer of all networks.
        learning_rate: Learning rate as a function of `num_updates`.
        epsilon: Exploration rate as a function of `num_updates`.
        beta: Importance-sampling exponent as a function of `num_updates`.
    """

    config: TeamQConfig
    num_agents: int
    net: TeamValues
    optimizer: optax.GradientTransformationExtraArgs
    learning_rate: optax.Schedule
    epsilon: Schedule
    beta: Schedule


@keeps_binding
def make_qmix(config: QMIXConfig, spec: EnvSpec, network: NetworkConfig) -> ReplayAgent:
    """Returns a QMIX agent; raises UserError where configuration, environment and network do not fit."""
    return make_team_q("qmix", config, spec, network, make_monotone_mixer(network, spec, config.mixing_size))


def make_team_q(name: str, config: TeamQConfig, spec: EnvSpec, network: NetworkConfig, mixer: Mixer) -> ReplayAgent:
    """Returns an agent of this name whose values `mixer` mixes; raises UserError as `make_qmix` does."""
    if network.core == "none":
        reject_other("burn_in", config.burn_in, 0, "network.core is 'none'")
    elif config.sequence_length == 1:
        raise UserError(
            f"sequence_length 1 trains no memory: expected more steps with network.core {network.core!r}, for example 8; or use "
            f"network.core 'none'"
        )
    total = config.total_updates
    learning_rate = make_schedule(config.learning_rate_schedule, config.learning_rate, total)
    team_q = TeamQ(
        config,
        spec.rows_per_env,
        make_team_values(network, spec, mixer, shared=config.share_parameters),
        make_optimizer(config.optimizer, learning_rate),
        learning_rate,
        epsilon_schedule(config.epsilon_start, config.epsilon_end, config.epsilon_decay_fraction, total),
        importance_exponent_schedule(config.replay, config.importance_sampling_exponent, total),
    )
    return ReplayAgent(
        name=name,
        init=partial(init, team_q),
        initial_agent_state=team_q.net.initial_state,
        act=partial(act, team_q),
        update=partial(update, team_q),
        extras={},
        data=Replay(
            config.replay,
            config.window_length,
            config.window_start,
            config.stride,
            spec.rows_per_env,
            sync_acting_params=partial(sync_scheduled, "epsilon", team_q.epsilon),
        ),
    )


def init(team_q: TeamQ, key: Array) -> LearnerState:
    """Returns the initial learner state; the target network is a copy of the networks. `key` is consumed."""
    online = team_q.net.init(key)
    # Copied: the state is donated, and no buffer may occur in it twice.
    extra = TeamQExtra(online["mixer"], jax.tree.map(jnp.copy, online), jnp.zeros((), jnp.int32))
    opt_state, num_updates = team_q.optimizer.init(online), jnp.zeros((), jnp.int32)
    state = LearnerState({"agents": online["agents"]}, opt_state, num_updates, extra)
    return sync_scheduled("epsilon", team_q.epsilon, state)


def act(
    team_q: TeamQ,
    params: Params,
    observation: Observation,
    agent_state: AgentState,
    is_first: Array,
    keys: Array,
    mode: Mode,
) -> tuple[Action, dict[str, Array], AgentState]:
    """Returns epsilon-greedy legal actions [B] of whole environments; each row's depends on its own observation only."""
    one_step = jax.tree.map(lambda leaf: leaf[None], (observation, is_first))
    values, agent_state = team_q.net.unroll(params, one_step[0], agent_state, one_step[1])
    legal = team_q.net.legal(observation)
    if mode is Mode.GREEDY:
        return greedy(values[0], legal), {}, agent_state
    return epsilon_greedy(values[0], legal, params["epsilon"], keys), {}, agent_state


def update(team_q: TeamQ, state: LearnerState, sample: Sample, key: Array) -> tuple[LearnerState, Metrics, Array]:
    """Returns the state after one gradient step, metrics, and the windows' priorities."""
    del key
    config, extra = team_q.config, state.extra
    online: Params = {"agents": state.params["agents"], "mixer": extra.mixer}
    learned = sample.trajectory.valid[config.burn_in : config.burn_in + config.sequence_length]
    counted = jnp.any(by_agent(team_q.num_agents, 1, learned), axis=(0, 2))
    importance = importance_weights(sample.probability, counted, team_q.beta(state.num_updates))
    grads, (metrics, priority) = jax.grad(partial(loss, team_q), has_aux=True)(
        online, extra.target, sample.trajectory, importance
    )
    online, opt_state = descend(team_q.optimizer, grads, state.opt_state, online, state.num_updates)
    count = extra.num_gradient_steps + 1
    moved = polyak(extra.target, online, config.tau)
    extra = TeamQExtra(online["mixer"], periodic(extra.target, moved, count, config.target_update_period), count)
    metrics |= {"gradient/norm": optax.tree.norm(grads), "exploration/epsilon": state.params["epsilon"]}
    metrics |= current_values({"learning_rate": team_q.learning_rate}, state.num_updates)
    params = {**state.params, "agents": online["agents"]}
    return LearnerState(params, opt_state, state.num_updates, extra), metrics, priority


def loss(
    team_q: TeamQ, online: Params, target: Params, window: Trajectory, importance: Array
) -> tuple[Array, tuple[Metrics, Array]]:
    """Returns half the mean squared error of the team's values over the learned steps, metrics, and the priorities [N].

    Args:
        team_q: The bound algorithm.
        online: Learned parameters.
        target: Parameters of the target network.
        window: [L+1 | L, N n, ...] windows.
        importance: [N] float32 importance weights.
    """
    config, net = team_q.config, team_q.net
    learned, values = values_after_burn_in(net, online, window, config.burn_in)
    _, target_values = values_after_burn_in(net, target, window, config.burn_in)
    steps = team_steps(learned, team_q.num_agents)
    before = jax.tree.map(lambda leaf: leaf[:-1], learned.observation)
    after = jax.tree.map(lambda leaf: leaf[1:], learned.observation)
    chosen = net.mixed(online, values[:-1], learned.action, before, steps.present)
    best = greedy(values[1:] if config.double else target_values[1:], net.legal(after))
    next_value = net.mixed(target, target_values[1:], best, after, steps.follows)
    goal = team_targets(steps, next_value, discount=config.discount, n_step=config.n_step)
    counts = steps.valid & (jnp.arange(len(steps.valid))[:, None] < config.sequence_length)
    mean = partial(weighted_mean, weight=counts.astype(chosen.dtype))
    error = jnp.where(counts, jax.lax.stop_gradient(goal) - chosen, 0.0)
    mean_loss = 0.5 * mean(jnp.square(error) * importance)
    metrics = {
        "loss/value": mean_loss,
        "value/mean": mean(chosen),
        "value/absolute_error": mean(jnp.abs(error)),
    }
    return mean_loss, (metrics, jax.lax.stop_gradient(window_priority(error, counts, _PRIORITY_ETA)))


def values_after_burn_in(net: TeamValues, params: Params, window: Trajectory, burn_in: int) -> tuple[Trajectory, Array]:
    """Returns the window without its burn-in, and all agents' values [L+1, N n, A] of the rest. The burn-in has no gradient."""
    state, window = window.agent_state, dataclasses.replace(window, agent_state=())
    if burn_in:
        observation, is_first = jax.tree.map(lambda leaf: leaf[:burn_in], (window.observation, window.is_first))
        state = jax.lax.stop_gradient(net.unroll(params, observation, state, is_first)[1])
        window = jax.tree.map(lambda leaf: leaf[burn_in:], window)
    values, _ = net.unroll(params, window.observation, state, window.is_first)
    return window, values
