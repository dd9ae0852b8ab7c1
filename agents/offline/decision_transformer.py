"""Decision Transformer: a sequence model that acts for a wanted return. Source: Chen et al. 2021 (arXiv:2106.01345), algorithm 1.

`docs/algorithms/offline.md` describes all offline algorithms.
"""

import dataclasses
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from agents.api import (
    EPISODE_STEP,
    RETURN_TO_GO,
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
from agents.networks.config import NetworkConfig, validate_plain_network
from agents.networks.decision_transformer import Sequence, SequenceNetwork, TransformerSizes, make_sequence_network
from agents.networks.observation_scale import normalized_spec
from agents.networks.sequence_actions import SequenceActions, sequence_actions
from agents.ops import validate
from agents.ops.gradient_descent import descend
from agents.ops.optimizers import OptimizerConfig, make_optimizer
from agents.ops.returns import weighted_mean
from agents.ops.schedules import CONSTANT, ScheduleConfig, Schedules, current_values, make_schedule
from agents.settings import complete
from agents.transforms.normalized_samples import with_normalized_samples
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, EnvSpec
from envpool_bridge.spec.tree import items

LAST_REWARD = "last_reward"
"""Item of the observation that `--env.last-reward` adds."""
_NO_RETURN = float(jnp.finfo(jnp.float32).min)


@dataclasses.dataclass(frozen=True)
class DecisionTransformerConfig:
    """Hyper-parameters; the defaults are the paper's for locomotion (table 9).

    Attributes:
        replay: Replay options. Of a dataset only the batch size counts, windows of `context_length` steps.
        normalize_observations: Whether observations are normalized by the statistics of all samples.
        total_updates: Updates of the whole run; needed only by schedules.
        target_return: Return that an episode is acted for. None: the largest return of the episodes that were sampled.
        context_length: K, newest steps that an action depends on.
        num_layers: Number of layers.
        num_heads: Number of attention heads of a layer.
        embedding_size: H, size of a token; divisible by `num_heads`.
        dropout: Probability that an element of embeddings, attention and layers is dropped while learning.
        max_episode_steps: Steps of an episode with an embedding of their own; later ones have that of the last.
        learning_rate: Initial learning rate.
        learning_rate_schedule: Change of the learning rate over the run; the paper's first 10,000 gradient steps warm up.
        optimizer: Settings of the optimizer.
    """

    replay: ReplayConfig = dataclasses.field(default_factory=lambda: ReplayConfig(batch_size=64))
    normalize_observations: bool = True
    total_updates: int = 0
    target_return: float | None = None
    context_length: int = 20
    num_layers: int = 3
    num_heads: int = 1
    embedding_size: int = 128
    dropout: float = 0.1
    max_episode_steps: int = 1000
    learning_rate: float = 1e-4
    learning_rate_schedule: ScheduleConfig = CONSTANT
    optimizer: OptimizerConfig = OptimizerConfig("adamw", epsilon=1e-8, weight_decay=1e-4, max_grad_norm=0.25)

    def __post_init__(self) -> None:
        complete(self)
        sizes = ("context_length", "num_layers", "num_heads", "embedding_size", "max_episode_steps")
        validate.at_least_one(self, *sizes)
        validate.positive(self, "learning_rate")
        validate.fraction(self, "dropout", below_one=True)
        validate.uniform_replay(self, "Decision Transformer")
        if self.embedding_size % self.num_heads:
            raise UserError(f"num_heads must divide embedding_size: got {self.num_heads} and {self.embedding_size}")


class DecisionTransformer(NamedTuple):
    """Decision Transformer, bound to its configuration and an environment's spec.

    Attributes:
        config: Hyper-parameters.
        actions: Encoding, error and choice of actions.
        net: The network.
        optimizer: Optimizer of the network.
        rates: Learning rate of "policy" as a function of `num_updates`.
    """

    config: DecisionTransformerConfig
    actions: SequenceActions
    net: SequenceNetwork
    optimizer: optax.GradientTransformationExtraArgs
    rates: Schedules


@keeps_binding
def make_decision_transformer(config: DecisionTransformerConfig, spec: EnvSpec, network: NetworkConfig) -> ReplayAgent:
    """Returns a Decision Transformer, for continuous actions or one discrete.

    Raises:
        UserError: Configuration, environment and network do not fit, or observations lack the last reward.
    """
    spec = normalized_spec(spec, config.normalize_observations)
    dt = build_decision_transformer(config, spec, network)
    agent = ReplayAgent(
        name="decision_transformer",
        init=partial(init, dt),
        initial_agent_state=partial(initial_agent_state, dt),
        act=partial(act, dt),
        update=partial(update, dt),
        extras={RETURN_TO_GO: ArraySpec((), "float32"), EPISODE_STEP: ArraySpec((), "int32")},
        data=Replay(config.replay, sequence_length=config.context_length, whole_episodes=True),
    )
    return with_normalized_samples(agent, spec, config.normalize_observations, without=LAST_REWARD)


def build_decision_transformer(
    config: DecisionTransformerConfig, spec: EnvSpec, network: NetworkConfig
) -> DecisionTransformer:
    """Returns network, optimizer and schedule; raises UserError as `make_decision_transformer` does."""
    validate_plain_network("Decision Transformer", network)
    actions = sequence_actions(spec)
    if (LAST_REWARD,) not in dict(items(spec.observation)):
        raise UserError(
            f"{spec.env_id}: Decision Transformer subtracts rewards from the wanted return: expected the item {LAST_REWARD!r} in "
            f"observations; use --env.last-reward"
        )
    sizes = TransformerSizes(*(getattr(config, name) for name in TransformerSizes._fields))
    rate = make_schedule(config.learning_rate_schedule, config.learning_rate, config.total_updates)
    net = make_sequence_network(network, sizes, spec, actions.size, without=(LAST_REWARD,))
    return DecisionTransformer(config, actions, net, make_optimizer(config.optimizer, rate), {"policy": rate})


def init(dt: DecisionTransformer, key: Array) -> LearnerState:
    """Returns the initial learner state. `key` is consumed."""
    network = dt.net.init(key)
    best, scale = jnp.full((), _NO_RETURN, jnp.float32), jnp.zeros((), jnp.float32)
    params = {"network": network, "best_return": best, "return_scale": scale}
    return LearnerState(params, dt.optimizer.init(network), jnp.zeros((), jnp.int32))


def initial_agent_state(dt: DecisionTransformer, num_rows: int) -> AgentState:
    """Returns the context of `num_rows` rows: the newest K steps, the newest last, and the number of steps of the episode."""
    length = dt.config.context_length
    return {
        "observed": jnp.zeros((num_rows, length, dt.config.embedding_size), jnp.float32),
        "action": jnp.zeros((num_rows, length, dt.actions.size), jnp.float32),
        "return_to_go": jnp.zeros((num_rows, length), jnp.float32),
        "num_steps": jnp.zeros((num_rows,), jnp.int32),
    }


def act(
    dt: DecisionTransformer,
    params: Params,
    observation: Observation,
    agent_state: AgentState,
    is_first: Array,
    keys: Array,
    mode: Mode,
) -> tuple[Action, dict[str, Array], AgentState]:
    """Returns actions [B, ...] for the return that is still wanted; discrete ones are samples unless greedy.

    The wanted return is the target at first, and then falls by every reward.
    """
    target = dt.config.target_return
    if target is None:
        target = jnp.where(params["best_return"] > _NO_RETURN, params["best_return"], 0.0)
    step = jnp.where(is_first, 0, agent_state["num_steps"])
    wanted = jnp.where(is_first, target, agent_state["return_to_go"][:, -1] - observation[LAST_REWARD])

    observed = _append(agent_state["observed"], dt.net.embed(params["network"], observation))
    return_to_go = _append(agent_state["return_to_go"], wanted)
    before = _append(agent_state["action"], jnp.zeros_like(agent_state["action"][:, 0]))
    length = dt.config.context_length
    episode_step = step[:, None] - jnp.arange(length - 1, -1, -1)
    # Slots before the start of the episode are empty, or hold another one.
    visible = jnp.broadcast_to((episode_step >= 0)[:, None], (step.shape[0], length, length))
    sequence = Sequence(observed, before, _scaled(return_to_go, params["return_scale"]), episode_step, visible)
    outputs = dt.net.outputs(params["network"], sequence, None)[:, -1]

    action = dt.actions.choose(outputs, observation, keys, mode)
    state = {
        "observed": observed,
        "action": _append(agent_state["action"], dt.actions.encode(action)),
        "return_to_go": return_to_go,
        "num_steps": step + 1,
    }
    return action, {RETURN_TO_GO: wanted, EPISODE_STEP: step}, state


def _append(context: Array, newest: Array) -> Array:
    """Returns [B, K, ...] without its oldest step and with the newest [B, ...]."""
    return jnp.concatenate([context[:, 1:], newest[:, None]], axis=1)


def update(
    dt: DecisionTransformer, state: LearnerState, sample: Sample, key: Array
) -> tuple[LearnerState, Metrics, Array]:
    """Returns the state after one gradient step, metrics, and the windows' priorities, their mean errors. `key` is consumed."""
    window, network = sample.trajectory, state.params["network"]
    known = window.valid & jnp.isfinite(window.extras[RETURN_TO_GO])
    return_to_go = jnp.where(known, window.extras[RETURN_TO_GO], 0.0)
    scale = jnp.maximum(state.params["return_scale"], jnp.max(jnp.abs(return_to_go)))
    window = dataclasses.replace(window, extras={**window.extras, RETURN_TO_GO: _scaled(return_to_go, scale)})
    gradient, (error, metrics) = jax.grad(partial(loss, dt), has_aux=True)(network, window, known, key)
    network, opt_state = descend(dt.optimizer, gradient, state.opt_state, network, state.num_updates)

    returns = jnp.where(known & (window.extras[EPISODE_STEP] == 0), return_to_go, _NO_RETURN)
    best = jnp.maximum(state.params["best_return"], jnp.max(returns))
    metrics |= current_values({"learning_rate": dt.rates["policy"]}, state.num_updates)
    metrics |= {"gradient/norm": optax.tree.norm(gradient)}
    priority = jnp.sum(error, axis=0) / jnp.maximum(jnp.sum(known, axis=0), 1)
    params = {"network": network, "best_return": best, "return_scale": scale}
    return LearnerState(params, opt_state, state.num_updates), metrics, priority


def _scaled(returns: Array, scale: Array) -> Array:
    """Returns returns in units of the largest one; as they are before there is one."""
    return returns / jnp.where(scale > 0.0, scale, 1.0)


def loss(
    dt: DecisionTransformer, network: Params, window: Trajectory, known: Array, key: Array
) -> tuple[Array, tuple[Array, Metrics]]:
    """Returns the mean error of the actions at every step; the errors [K, N]; and metrics. `key` is consumed by dropout.

    Args:
        dt: The bound algorithm.
        network: Parameters.
        window: Windows of K steps of N rows, with scaled returns.
        known: [K, N] bool, whether the step counts and the end of its episode is recorded.
        key: Key of dropout.
    """
    observation = jax.tree.map(lambda leaf: leaf[: len(known)], window.observation)
    steps = (dt.net.embed(network, observation), dt.actions.encode(window.action), window.extras[RETURN_TO_GO])
    observed, action, wanted, number = (jnp.swapaxes(leaf, 0, 1) for leaf in (*steps, window.extras[EPISODE_STEP]))
    episode = jnp.cumsum(window.is_first[: len(known)], axis=0).T
    # A step that only resets is the last of its episode, so that no step that counts attends to it.
    visible = episode[:, :, None] == episode[:, None]
    outputs = dt.net.outputs(network, Sequence(observed, action, wanted, number, visible), key)
    error = dt.actions.error(jnp.swapaxes(outputs, 0, 1), window.action, observation)
    error = jnp.where(known, error, 0.0)
    total = weighted_mean(error, known.astype(jnp.float32))
    return total, (error, {"loss/total": total})
