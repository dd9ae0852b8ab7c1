"""AlphaZero: a network that learns from its own searches in games of two players with known rules.

Source: Silver et al. 2018, "A general reinforcement learning algorithm that masters chess, shogi, and Go through self-play"; the
default search is that of Danihelka et al. 2022 (Gumbel AlphaZero). `docs/algorithms/alphazero.md` lists every deviation.
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
from agents.networks.distributions import mask_logits
from agents.networks.game import MASK, GameNetwork, make_game_network
from agents.ops import validate
from agents.ops.gradient_descent import descend
from agents.ops.optimizers import OptimizerConfig, make_optimizer
from agents.ops.returns import weighted_mean
from agents.ops.schedules import CONSTANT, ScheduleConfig, current_values, make_schedule
from agents.search.game import GameFn, load_game
from agents.search.gumbel import GumbelConfig, gumbel_search
from agents.search.model import Latent, ModelStep, Root, SearchResult
from agents.search.puct import PUCTConfig, puct_search
from agents.settings import complete
from envpool_bridge.spec.specs import ArraySpec, EnvSpec


@dataclasses.dataclass(frozen=True)
class AlphaZeroConfig:
    """Hyper-parameters.

    Attributes:
        replay: Sizes and rates of the replay buffer.
        game: "module:name" of a function that takes the environment's id and returns its rules (`agents.search.game`).
        search: "gumbel" (Danihelka et al. 2022), which improves the policy with few simulations, or "puct".
        gumbel: Settings of the search "gumbel".
        puct: Settings of the search "puct".
        temperature: Temperature of the choice among visit counts by "puct" in self-play.
        random_moves: Share of the moves in self-play that are equally likely among the legal ones, for positions that good players
            do not reach. No outcome passes such a move: the search's value before it replaces the outcome.
        window: Moves of a window; a value target bootstraps from the search at its last move.
        value_coef: Weight of the loss of values.
        total_updates: Trajectories of the whole run, for the schedule.
        learning_rate: Initial learning rate.
        learning_rate_schedule: Change of the learning rate over the run.
        optimizer: Settings of the optimizer.
    """

    replay: ReplayConfig = dataclasses.field(
        default_factory=lambda: ReplayConfig(batch_size=32, gradient_steps_per_env_step=1 / 64)
    )
    game: str = "jaxsrl.envs.pgx:pgx_rules"
    search: Literal["gumbel", "puct"] = "gumbel"
    gumbel: GumbelConfig = dataclasses.field(default_factory=lambda: GumbelConfig(32, value_scale=1.0))
    puct: PUCTConfig = dataclasses.field(default_factory=PUCTConfig)
    temperature: float = 1.0
    random_moves: float = 0.1
    window: int = 16
    value_coef: float = 1.0
    total_updates: int = 0
    learning_rate: float = 1e-3
    learning_rate_schedule: ScheduleConfig = CONSTANT
    optimizer: OptimizerConfig = OptimizerConfig(weight_decay=1e-4, max_grad_norm=5.0)

    def __post_init__(self) -> None:
        complete(self)
        validate.choices(self)
        validate.at_least_one(self, "window")
        validate.positive(self, "learning_rate", "temperature")
        validate.fraction(self, "random_moves")
        validate.not_negative(self, "value_coef")
        validate.uniform_replay(self, "AlphaZero")


class AlphaZero(NamedTuple):
    """AlphaZero, bound to its configuration and a game.

    Attributes:
        config: Hyper-parameters.
        play: The rules.
        net: Policy and value of positions.
        optimizer: Optimizer of the network.
        learning_rate: Learning rate as a function of `num_updates`.
    """

    config: AlphaZeroConfig
    play: GameFn
    net: GameNetwork
    optimizer: optax.GradientTransformationExtraArgs
    learning_rate: optax.Schedule


@keeps_binding
def make_alphazero(config: AlphaZeroConfig, spec: EnvSpec, network: NetworkConfig) -> ReplayAgent:
    """Returns an AlphaZero agent, which plays both sides.

    Raises:
        UserError: If the environment is no game with known rules, or the network does not fit.
    """
    alphazero = build_alphazero(config, spec, network)
    size = alphazero.net.num_actions
    return ReplayAgent(
        name="alphazero",
        init=partial(init, alphazero),
        initial_agent_state=lambda num_rows: (),
        act=partial(act, alphazero),
        update=partial(update, alphazero),
        extras={
            "search_policy": ArraySpec((size,), "float32"),
            "root_value": ArraySpec((), "float32"),
            "is_random": ArraySpec((), "bool"),
        },
        data=Replay(config.replay, config.window),
    )


def build_alphazero(config: AlphaZeroConfig, spec: EnvSpec, network: NetworkConfig) -> AlphaZero:
    """Returns rules, network and optimizer; raises UserError as `make_alphazero` does."""
    net = make_game_network(network, spec)
    learning_rate = make_schedule(config.learning_rate_schedule, config.learning_rate, config.total_updates)
    optimizer = make_optimizer(config.optimizer, learning_rate)
    return AlphaZero(config, load_game(config.game, spec.env_id), net, optimizer, learning_rate)


def init(alphazero: AlphaZero, key: Array) -> LearnerState:
    """Returns the initial learner state. `key` is consumed."""
    params = alphazero.net.init(key)
    return LearnerState(params, alphazero.optimizer.init(params), jnp.zeros((), jnp.int32))


def act(
    alphazero: AlphaZero,
    params: Params,
    observation: Observation,
    agent_state: AgentState,
    is_first: Array,
    keys: Array,
    mode: Mode,
) -> tuple[Action, dict[str, Array], AgentState]:
    """Returns the moves [B] of a search from each position; greedy mode searches and moves without noise."""
    del is_first
    search_keys, draw_keys, move_keys = jax.vmap(lambda key: jax.random.split(key, 3), out_axes=1)(keys)
    result = search(alphazero, params, observation, search_keys, explores=mode is Mode.SAMPLE)
    is_random = jax.vmap(jax.random.bernoulli, (0, None))(draw_keys, alphazero.config.random_moves)
    is_random &= mode is Mode.SAMPLE
    random_move = jax.vmap(jax.random.categorical)(
        move_keys, mask_logits(jnp.zeros_like(result.policy), observation[MASK])
    )
    move = jnp.where(is_random, random_move, result.action).astype(jnp.int32)
    extras = {"search_policy": result.policy, "root_value": result.value, "is_random": is_random}
    return move, extras, agent_state


def search(
    alphazero: AlphaZero, params: Params, observation: Observation, keys: Array, *, explores: bool
) -> SearchResult:
    """Returns a search from each position [N]; without exploration it takes the best move. `keys` [N] are consumed."""
    config, (logits, value) = alphazero.config, alphazero.net.evaluate(params, observation)
    root, step = Root(logits, value, observation), partial(model_step, alphazero)
    if config.search == "gumbel":
        return gumbel_search(step, params, root, keys, config.gumbel, gumbel_scale=float(explores))
    temperature = config.temperature if explores else 0.0
    return puct_search(step, params, root, keys, config.puct, temperature=temperature, noise=float(explores))


def model_step(alphazero: AlphaZero, params: Params, latent: Latent, action: Array, key: Array) -> ModelStep:
    """Returns the result of a move [N] in each position, with values of the player to move: the discount is -1, at an end 0."""
    del key
    after = jax.vmap(alphazero.play)(latent, action)
    logits, value = alphazero.net.evaluate(params, after.observation)
    return ModelStep(after.reward, jnp.where(after.ended, 0.0, -1.0), logits, value, after.observation)


def update(
    alphazero: AlphaZero, state: LearnerState, sample: Sample, key: Array
) -> tuple[LearnerState, Metrics, Array]:
    """Returns the state after one gradient step, metrics, and equal priorities. `key` is unused."""
    del key
    grads, metrics = jax.grad(partial(loss, alphazero), has_aux=True)(state.params, sample.trajectory)
    params, opt_state = descend(alphazero.optimizer, grads, state.opt_state, state.params, state.num_updates)
    metrics |= current_values({"learning_rate": alphazero.learning_rate}, state.num_updates)
    metrics["gradient/norm"] = optax.tree.norm(grads)
    return LearnerState(params, opt_state, state.num_updates), metrics, jnp.ones_like(sample.probability)


def loss(alphazero: AlphaZero, params: Params, window: Trajectory) -> tuple[Array, Metrics]:
    """Returns the mean over all moves of the windows: cross-entropy to the search's policy, squared error of the value."""
    positions = jax.tree.map(lambda leaf: leaf[:-1], window.observation)
    logits, value = alphazero.net.evaluate(params, positions)
    policy = window.extras["search_policy"]
    cross_entropy = -jnp.sum(policy * jax.nn.log_softmax(logits), axis=-1)
    entropy = -jnp.sum(policy * jnp.log(jnp.maximum(policy, 1e-9)), axis=-1)
    error = jnp.square(value - value_targets(window))
    mean = partial(weighted_mean, weight=window.valid.astype(jnp.float32))
    total = mean(cross_entropy) + alphazero.config.value_coef * mean(error)
    return total, {
        "loss/total": total,
        "loss/policy": mean(cross_entropy),
        "loss/value": mean(error),
        "policy/divergence": mean(cross_entropy - entropy),
        "policy/entropy": mean(entropy),
        "value/mean": mean(value),
    }


def value_targets(window: Trajectory) -> Array:
    """Returns [L, N], the outcome of each game for the player to move: its sign changes with every move.

    Where a game does not end within the window, the search's value at the window's last move replaces its outcome; likewise where
    a game was cut, and at random moves.
    """
    searched = window.extras["root_value"]
    resets_next = jnp.concatenate([~window.valid[1:], jnp.ones_like(window.valid[:1])])
    is_cut = window.extras["is_random"] | (~window.terminated & (window.truncated | resets_next))

    def backward(after: Array, step: tuple[Array, Array, Array, Array]) -> tuple[Array, Array]:
        reward, terminated, cut, value = step
        outcome = jnp.where(cut, value, jnp.where(terminated, reward, reward - after))
        return outcome, outcome

    steps = (window.reward, window.terminated, is_cut, searched)
    _, outcomes = jax.lax.scan(backward, jnp.zeros_like(searched[0]), steps, reverse=True)
    return outcomes
