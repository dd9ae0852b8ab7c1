"""DreamerV3: a policy that is learned in sequences which a world model imagines.

Source: Hafner et al. 2025 (Nature 640; arXiv:2301.04104), "Mastering diverse control tasks through world models", and its
published code. `docs/algorithms/dreamer.md` lists every deviation.
"""

import dataclasses
from collections.abc import Callable, Mapping
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
    Trajectory,
)
from agents.binding import keeps_binding
from agents.networks.config import NetworkConfig
from agents.ops import validate
from agents.ops.gradient_descent import descend
from agents.ops.optimizers import OptimizerConfig, make_optimizer
from agents.ops.return_range import ReturnRange, follow_range, init_range, range_scale
from agents.ops.returns import lambda_returns, weighted_mean
from agents.ops.schedules import CONSTANT, ScheduleConfig, current_values, make_schedule
from agents.ops.symlog import clamped_fraction, symexp_mean, symexp_two_hot
from agents.ops.target_update import polyak
from agents.ops.two_hot import cross_entropy
from agents.settings import complete, reject_other
from agents.world_models.imagination import imagine
from agents.world_models.layers import Head
from agents.world_models.model import (
    NUM_ATOMS,
    Arrivals,
    WorldModel,
    arrivals,
    kl,
    make_world_model,
    model_losses,
    observe_step,
    predicted_discount,
    predicted_reward,
    split_params,
)
from agents.world_models.open_loop import predict_observations
from agents.world_models.rssm import Latent
from agents.world_models.sizes import WorldModelConfig
from agents.world_models.windows import initial_state, load_latent, observe_window, store_state
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import EnvSpec

_SMALL_GAIN = 0.01  # initial policies are near uniform
_NUM_LAYERS = 3


@dataclasses.dataclass(frozen=True)
class DreamerConfig:
    """Hyper-parameters; the defaults are those of the published code.

    Attributes:
        replay: Sizes and rates of the replay buffer. The train ratio of the paper, replayed steps for each env step, is
            `gradient_steps_per_env_step * batch_size * sequence_length`.
        model: Sizes of the world model, and of policy and value.
        burn_in: Steps before the learned ones, which renew the recurrent state that was stored while acting.
        sequence_length: Steps of a window that are learned.
        stride: Steps between the starts of two windows of a row, a multiple of the rollout length.
        imagination_length: H, imagined steps.
        imagine_last: States at the end of each window from which sequences are imagined; None: all learned ones.
        discount: g, per env step.
        lambda_: Lambda of the returns, in [0, 1].
        entropy_coef: Weight of the policy's entropy.
        free_nats: KL divergence below which the model is not trained by it.
        dynamics_coef: Weight of the KL divergence that trains the prior.
        representation_coef: Weight of the KL divergence that trains the posterior.
        replay_value_coef: Weight of the loss of values at replayed states.
        slow_value_coef: Weight of the loss of values towards those of the slow network.
        slow_value_tau: Step size of the slow value network towards the value network.
        return_range_rate: Step size of the percentiles by which advantages are divided.
        total_updates: Trajectories of the whole run, for schedules.
        learning_rate: Initial learning rate.
        learning_rate_schedule: Change of the learning rate over the run.
        warmup_steps: Gradient steps over which the learning rate rises from 0.
        optimizer: Settings of the optimizer.
    """

    replay: ReplayConfig = dataclasses.field(default_factory=lambda: ReplayConfig(1_000_000, 16, 2_048, 1 / 32))
    model: WorldModelConfig = dataclasses.field(default_factory=WorldModelConfig)
    burn_in: int = 8
    sequence_length: int = 64
    stride: int = 16
    imagination_length: int = 15
    imagine_last: int | None = None
    discount: float = 1.0 - 1.0 / 333.0
    lambda_: float = 0.95
    entropy_coef: float = 3e-4
    free_nats: float = 1.0
    dynamics_coef: float = 1.0
    representation_coef: float = 0.1
    replay_value_coef: float = 0.3
    slow_value_coef: float = 1.0
    slow_value_tau: float = 0.02
    return_range_rate: float = 0.01
    total_updates: int = 0
    learning_rate: float = 4e-5
    learning_rate_schedule: ScheduleConfig = CONSTANT
    warmup_steps: int = 1_000
    optimizer: OptimizerConfig = OptimizerConfig("laprop", epsilon=1e-20, adaptive_clip=0.3, decay=0.999, momentum=0.9)

    def __post_init__(self) -> None:
        complete(self)
        validate.at_least_one(self, "stride", "imagination_length", "warmup_steps")
        validate.not_negative(self, "burn_in", "entropy_coef", "free_nats", "dynamics_coef", "representation_coef")
        validate.not_negative(self, "replay_value_coef", "slow_value_coef")
        validate.fraction(self, "discount", "lambda_", "return_range_rate")
        validate.fraction(self, "slow_value_tau", above_zero=True)
        validate.positive(self, "learning_rate")
        if self.sequence_length < 2:
            raise UserError(f"sequence_length must be at least 2, a state and the next: got {self.sequence_length}")
        if not 2 <= self.num_starts <= self.sequence_length:
            raise UserError(f"imagine_last must lie in [2, sequence_length], or be None: got {self.imagine_last}")

    @property
    def num_starts(self) -> int:
        """K, states at the end of a window from which sequences are imagined."""
        return self.sequence_length if self.imagine_last is None else self.imagine_last


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DreamerExtra:
    """Learner state of Dreamer apart from encoder, RSSM, policy and optimizer; acting does not need it.

    Attributes:
        other_params: Parameters of decoder, reward, discount and value, by name of the network.
        slow_value: Parameters of the slow value network.
        return_range: Running percentiles of imagined returns.
        num_gradient_steps: int32 scalar, gradient steps taken so far.
        entropy_coef_factor: float32 scalar that multiplies the weight of the entropy; see `agents.ops.schedules.get_factors`.
    """

    other_params: Params
    slow_value: Params
    return_range: ReturnRange
    num_gradient_steps: Array
    entropy_coef_factor: Array


class Dreamer(NamedTuple):
    """Dreamer, bound to its configuration and an environment's spec.

    Attributes:
        config: Hyper-parameters.
        model: The world model.
        heads: Networks of policy and value.
        policy: Maps (its parameters, features [..., D + S C]) to parameters [..., P] of the distribution of actions.
        value: Maps (its parameters, features [..., D + S C]) to logits [..., K] of the value.
        optimizer: Optimizer of all networks.
        learning_rate: Learning rate as a function of `num_updates`, after the warm-up.
    """

    config: DreamerConfig
    model: WorldModel
    heads: Mapping[str, Head]
    policy: Callable[[Params, Array], Array]
    value: Callable[[Params, Array], Array]
    optimizer: optax.GradientTransformationExtraArgs
    learning_rate: optax.Schedule


class Imagined(NamedTuple):
    """Imagined sequences of N starts, time-major; nothing in them has a gradient.

    Attributes:
        features: [H+1, N, D + S C] of each state.
        action: [H+1, N, F] taken there.
        returns: [H, N] lambda-returns of the first H states, environment reward units.
        value: [H, N] values of these states.
        weight: [H, N] probability that a state is reached, times its discount.
    """

    features: Array
    action: Array
    returns: Array
    value: Array
    weight: Array


@keeps_binding
def make_dreamer(config: DreamerConfig, spec: EnvSpec, network: NetworkConfig) -> ReplayAgent:
    """Returns a Dreamer agent. Of `network` it uses only `dtype`: `config.model` has the sizes.

    Raises:
        UserError: If the network has memory or its own torso, actions are unbounded, masked or mixed, or a schedule lacks its
            end.
    """
    dreamer = build_dreamer(config, spec, network)
    return ReplayAgent(
        name="dreamer",
        init=partial(init, dreamer),
        initial_agent_state=partial(initial_state, dreamer.model),
        act=partial(act, dreamer),
        update=partial(update, dreamer),
        extras={},
        data=Replay(config.replay, config.burn_in + config.sequence_length, stride=config.stride),
        predict_observations=partial(predict_observations, dreamer.model),
    )


def build_dreamer(config: DreamerConfig, spec: EnvSpec, network: NetworkConfig) -> Dreamer:
    """Returns networks and optimizer; raises UserError as `make_dreamer` does."""
    for name, value in vars(network).items():
        if name != "dtype":
            reason = "Dreamer's world model encodes and remembers, with the sizes in agent.model"
            reject_other(f"network.{name}", value, getattr(NetworkConfig, name), reason)
    sizes = config.model.sizes_for(spec)
    model = make_world_model(sizes, spec, network.dtype, config.model.unroll)
    learning_rate = make_schedule(config.learning_rate_schedule, config.learning_rate, config.total_updates)
    policy = Head(_NUM_LAYERS, sizes.units, model.actions.num_parameters, _SMALL_GAIN, network.dtype)
    value = Head(_NUM_LAYERS, sizes.units, NUM_ATOMS, 0.0, network.dtype)
    return Dreamer(
        config,
        model,
        {"policy": policy, "value": value},
        policy.apply,  # pyright: ignore[reportArgumentType]
        value.apply,  # pyright: ignore[reportArgumentType]
        make_optimizer(config.optimizer, learning_rate),
        learning_rate,
    )


def init(dreamer: Dreamer, key: Array) -> LearnerState:
    """Returns the initial learner state. `key` is consumed."""
    keys, features = jax.random.split(key, 3), jnp.zeros((1, dreamer.model.sizes.features))
    params = {
        **dreamer.model.init(keys[0]),
        "policy": dreamer.heads["policy"].init(keys[1], features),
        "value": dreamer.heads["value"].init(keys[2], features),
    }
    zero = jnp.zeros((), jnp.int32)
    acting, others = split_params(params)
    # Copied: the state is donated, and no buffer may occur in it twice.
    extra = DreamerExtra(others, jax.tree.map(jnp.copy, others["value"]), init_range(), jnp.copy(zero), jnp.ones(()))
    return LearnerState(acting, dreamer.optimizer.init(params), zero, extra)


def act(
    dreamer: Dreamer,
    params: Params,
    observation: Observation,
    agent_state: AgentState,
    is_first: Array,
    keys: Array,
    mode: Mode,
) -> tuple[Action, dict[str, Array], AgentState]:
    """Returns actions [B, ...] in the state that the observation leads to; greedy mode takes the policy's mode."""
    model, sizes = dreamer.model, dreamer.model.sizes
    latent_keys, action_keys = jax.vmap(jax.random.split, out_axes=1)(keys)
    noise = jax.vmap(lambda key: jax.random.gumbel(key, (sizes.stoch, sizes.classes)))(latent_keys)
    tokens, before = model.encode(params, observation), load_latent(model, agent_state)
    latent, _ = observe_step(model, params, before, agent_state["action"], is_first, tokens, noise)
    outputs = dreamer.policy(params["policy"], latent.features)
    if mode is Mode.GREEDY:
        vector = model.actions.mode(outputs)
    else:
        vector = model.actions.sample(outputs, jax.vmap(lambda key: model.actions.noise(key, ()))(action_keys))
    action = model.actions.decode(vector)
    return action, {}, store_state(latent, model.actions.encode(action))


def update(dreamer: Dreamer, state: LearnerState, sample: Sample, key: Array) -> tuple[LearnerState, Metrics, Array]:
    """Returns the state after one gradient step, metrics, and the windows' priorities: losses of the model. Consumes `key`."""
    extra: DreamerExtra = state.extra
    gradient = jax.grad(partial(loss, dreamer), has_aux=True)
    params: Params = {**state.params, **extra.other_params}
    grads, (return_range, metrics, priority) = gradient(params, extra, sample.trajectory, key)
    count = extra.num_gradient_steps + 1
    warmup = jnp.minimum(1.0, count / dreamer.config.warmup_steps)
    params, opt_state = descend(dreamer.optimizer, grads, state.opt_state, params, state.num_updates, warmup)
    acting, others = split_params(params)
    slow_value = polyak(extra.slow_value, others["value"], dreamer.config.slow_value_tau)
    metrics |= current_values({"learning_rate": dreamer.learning_rate}, state.num_updates)
    metrics["gradient/norm"] = optax.tree.norm(grads)
    extra = DreamerExtra(others, slow_value, return_range, count, extra.entropy_coef_factor)
    return LearnerState(acting, opt_state, state.num_updates, extra), metrics, priority


def loss(
    dreamer: Dreamer, params: Params, extra: DreamerExtra, window: Trajectory, key: Array
) -> tuple[Array, tuple[ReturnRange, Metrics, Array]]:
    """Returns the weighted sum of all losses, the new return range, metrics, and the priorities [N].

    Args:
        dreamer: The bound algorithm.
        params: Parameters of all networks.
        extra: Slow value network and return range.
        window: [L(+1), N, ...] windows.
        key: Consumed.
    """
    config = dreamer.config
    observe_key, imagine_key = jax.random.split(key)
    observed = observe_window(dreamer.model, params, window, config.burn_in, observe_key)
    arrived: Arrivals = jax.tree.map(lambda leaf: leaf[config.burn_in :], arrivals(window))
    losses = model_losses(
        dreamer.model, params, observed, arrived, discount=config.discount, free_nats=config.free_nats
    )
    latent, arrived_last = jax.tree.map(lambda x: x[-config.num_starts :], (observed.latent, arrived))
    starts = jax.tree.map(lambda leaf: jax.lax.stop_gradient(leaf.reshape((-1, *leaf.shape[2:]))), latent)
    imagined = imagined_sequences(dreamer, jax.lax.stop_gradient(params), starts, imagine_key)
    known = arrived_last.known.reshape(-1)
    imagined = imagined._replace(weight=imagined.weight * known)
    return_range = follow_range(extra.return_range, imagined.returns, known > 0.0, config.return_range_rate)
    scale = range_scale(return_range)
    policy_loss, behavior_metrics = policy_losses(dreamer, params, imagined, scale, extra.entropy_coef_factor)
    value_loss = value_losses(dreamer, params, extra.slow_value, imagined.features[:-1], imagined.returns)
    returns = replayed_returns(config, arrived_last, imagined.returns[0].reshape(arrived_last.known.shape))
    replay_loss = value_losses(dreamer, params, extra.slow_value, latent.features[:-1], returns)

    terms = {
        **{name: weighted_mean(values, arrived.known) for name, values in losses.items()},
        "policy": jnp.mean(imagined.weight * policy_loss),
        "value": jnp.mean(imagined.weight * value_loss),
        "replay_value": jnp.mean(arrived_last.known[:-1] * ~arrived_last.last[:-1] * replay_loss),
    }
    weights = {
        "dynamics": config.dynamics_coef,
        "representation": config.representation_coef,
        "replay_value": config.replay_value_coef,
    }
    priority = jnp.mean(sum(weights.get(name, 1.0) * values for name, values in losses.items()) * arrived.known, axis=0)
    total = sum((weights.get(name, 1.0) * term for name, term in terms.items()), jnp.zeros(()))
    metrics = behavior_metrics | {f"loss/{name}": term for name, term in terms.items()}
    metrics |= {
        "loss/total": total,
        "model/kl": weighted_mean(kl(observed.posterior, observed.prior), arrived.known),
        "value/return_range": return_range.high - return_range.low,
        "value/replayed_return": jnp.mean(returns),
        "value/clamped_fraction": clamped_fraction(returns, arrived.reward, arrived.known),
    }
    return total, (return_range, metrics, priority)


def replayed_returns(config: DreamerConfig, arrived: Arrivals, imagined: Array) -> Array:
    """Returns [K-1, N] lambda-returns of real rewards up to the last of K states, where imagined returns [K, N] bootstrap."""
    discount = config.discount * (1.0 - arrived.terminal[1:])
    mixing = config.lambda_ * (1.0 - arrived.last[1:])
    return lambda_returns(arrived.reward[1:], discount, imagined[1:], imagined[-1], mixing)


def imagined_sequences(dreamer: Dreamer, params: Params, start: Latent, key: Array) -> Imagined:
    """Returns sequences of H steps of the policy in the world model, from N starts. `key` is consumed."""
    config, model, policy = dreamer.config, dreamer.model, partial(dreamer.policy, params["policy"])
    features, action = imagine(model, params, policy, start, config.imagination_length, key)
    reward = predicted_reward(model, params, features)
    discount = predicted_discount(model, params, features)
    value = symexp_mean(dreamer.value(params["value"], features))
    returns = lambda_returns(reward[1:], discount[1:], value[1:], value[-1], config.lambda_)
    # The discount of the start counts, too: nothing is learned from terminal ones.
    return Imagined(features, action, returns, value[:-1], jnp.cumprod(discount[:-1], axis=0))


def policy_losses(
    dreamer: Dreamer, params: Params, imagined: Imagined, scale: Array, entropy_factor: Array | float = 1.0
) -> tuple[Array, Metrics]:
    """Returns [H, N], REINFORCE with the value as baseline and an entropy bonus, and metrics. Advantages are divided by `scale`."""
    actions = dreamer.model.actions
    outputs = dreamer.policy(params["policy"], imagined.features[:-1])
    advantage = (imagined.returns - imagined.value) / scale
    entropy = actions.entropy(outputs)
    entropy_coef = dreamer.config.entropy_coef * entropy_factor
    losses = -(actions.log_prob(outputs, imagined.action[:-1]) * advantage + entropy_coef * entropy)
    mean = partial(weighted_mean, weight=imagined.weight)
    metrics = {
        "policy/entropy": mean(entropy),
        "policy/advantage": mean(jnp.abs(advantage)),
        "value/mean": mean(imagined.value),
        "value/return": mean(imagined.returns),
    }
    return losses, jax.lax.stop_gradient(metrics)


def value_losses(dreamer: Dreamer, params: Params, slow: Params, features: Array, returns: Array) -> Array:
    """Returns [...]: cross-entropies of values at features [..., D + S C] to their returns and to the slow network's values."""
    logits = dreamer.value(params["value"], features)
    slow_value = symexp_mean(dreamer.value(slow, jax.lax.stop_gradient(features)))
    targets = (symexp_two_hot(jax.lax.stop_gradient(x), NUM_ATOMS) for x in (returns, slow_value))
    to_returns, to_slow = (cross_entropy(logits, target) for target in targets)
    return to_returns + dreamer.config.slow_value_coef * to_slow
