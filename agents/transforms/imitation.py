"""Generative adversarial imitation (GAIL) around an on-policy agent: rewards come from a discriminator, not the environment.

Source: Ho and Ermon 2016 (arXiv:1606.03476), algorithm 1, with the wrapped agent as the policy's optimizer.

The discriminator is no part of the parameters that act. It gets a few gradient steps in each update, before the agent learns from
the rewards that it then gives. Episode returns in metrics stay those of the environment.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
import optax

from agents.api import Action, Agent, Array, LearnerState, Metrics, Observation, OptState, Params, Trajectory
from agents.networks.config import NetworkConfig
from agents.networks.critics import make_critics
from agents.ops import validate
from agents.ops.action_scaling import continuous_actions
from agents.ops.gradient_descent import descend
from agents.ops.optimizers import OptimizerConfig, make_optimizer
from agents.ops.returns import weighted_mean
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import DiscreteSpec, EnvSpec, num_frames

RewardForm = Literal["positive", "signed"]
_LARGEST = 10.0  # deviations of a normalized observation
_SMALLEST_DEVIATION = 1e-3


class Demonstrations(NamedTuple):
    """Steps of an expert.

    Attributes:
        observation: [S, ...] a leaf, numpy.
        action: [S, ...], numpy.
    """

    observation: Any
    action: Any


@dataclasses.dataclass(frozen=True)
class GAILConfig:
    """Settings of the discriminator D, the probability that a step is the expert's.

    Attributes:
        reward: "positive": -log(1 - D), for tasks in which a longer episode is better. "signed": log D - log(1 - D), which may also
            reward an early end.
        steps_per_update: Gradient steps in each update.
        batch_size: Steps of the expert, and as many of the policy, of a gradient step.
        learning_rate: Of the discriminator.
        entropy_coef: Weight of its entropy, against overconfidence.
        hidden_sizes: Of its layers.
    """

    reward: RewardForm = "positive"
    steps_per_update: int = 8
    batch_size: int = 256
    learning_rate: float = 3e-4
    entropy_coef: float = 1e-3
    hidden_sizes: tuple[int, ...] = (64, 64)

    def __post_init__(self) -> None:
        if self.reward not in get_args(RewardForm):
            raise UserError(f"reward must be one of {', '.join(get_args(RewardForm))}: got {self.reward!r}")
        validate.at_least_one(self, "steps_per_update", "batch_size")
        validate.positive(self, "learning_rate")
        validate.not_negative(self, "entropy_coef")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ImitationExtra:
    """Learner state of the discriminator, and that of the agent apart from its parameters.

    Attributes:
        agent: `LearnerState.extra` of the agent.
        discriminator: Parameters of the discriminator.
        opt_state: State of its optimizer.
    """

    agent: Any
    discriminator: Params
    opt_state: OptState


class Discriminator(NamedTuple):
    """The discriminator, bound to an environment's spec and an expert.

    Attributes:
        config: Settings.
        init: Returns parameters; the key is consumed.
        logits: Maps (params, observation [N, ...], action [N, ...]) to log D - log(1 - D), [N].
        optimizer: Of the parameters.
        expert: Steps of the expert; None where nothing is learned.
    """

    config: GAILConfig
    init: Callable[[Array], Params]
    logits: Callable[[Params, Observation, Action], Array]
    optimizer: optax.GradientTransformationExtraArgs
    expert: Demonstrations | None


def with_imitation(agent: Agent, config: GAILConfig, spec: EnvSpec, expert: Demonstrations | None) -> Agent:
    """Returns the agent that imitates an expert.

    Args:
        agent: Learns from trajectories, with one policy.
        config: Settings of the discriminator.
        spec: Specification of the environment.
        expert: Demonstrations; None for an agent that only acts, such as one that is loaded.

    Raises:
        UserError: The agent learns from replay or has several policies, frames are stacked, actions are neither one discrete number
            nor bounded arrays, or there are no demonstrations.
    """
    if not isinstance(agent, Agent) or agent.groups or agent.bind_replay is not None:
        raise UserError(
            f"imitation replaces the rewards of each trajectory: expected one policy that learns from trajectories, such as PPO, "
            f"got {agent.name}"
        )
    if num_frames(spec) > 1:
        raise UserError(
            f"{spec.env_id}: demonstrations have single frames: expected frame_stack 1, got {num_frames(spec)}"
        )
    if expert is not None and not len(expert.action):
        raise UserError("imitation needs steps of an expert: got none")
    discriminator = make_discriminator(config, spec, expert)
    return agent._replace(
        init=partial(init, agent, discriminator), update=partial(update, agent, discriminator), gradient_steps=None
    )


def make_discriminator(config: GAILConfig, spec: EnvSpec, expert: Demonstrations | None) -> Discriminator:
    """Returns the discriminator; raises UserError as `with_imitation` does."""
    size, encode = _action_vectors(spec)
    network = NetworkConfig(hidden_sizes=config.hidden_sizes, activation="tanh")
    critic = make_critics(network, spec, size, num_critics=1)
    normalize = _normalizer(expert)

    def logits(params: Params, observation: Observation, action: Action) -> Array:
        return critic.values(params, normalize(observation), encode(action))[0]

    optimizer = make_optimizer(OptimizerConfig(epsilon=1e-8), optax.constant_schedule(config.learning_rate))
    return Discriminator(config, critic.init, logits, optimizer, expert)


def _action_vectors(spec: EnvSpec) -> tuple[int, Callable[[Action], Array]]:
    """Returns the size of an action's vector, and the function from actions [N, ...] to vectors."""
    if isinstance(spec.action, DiscreteSpec):
        count = spec.action.num_values
        return count, lambda action: jax.nn.one_hot(action, count)
    actions = continuous_actions(spec)
    return actions.size, actions.to_unit


def _normalizer(expert: Demonstrations | None) -> Callable[[Observation], Observation]:
    """Returns the function that shifts and scales float leaves to the expert's mean 0 and deviation 1."""
    if expert is None:
        return lambda observation: observation
    moments = jax.tree.map(lambda leaf: (np.mean(leaf, 0), np.maximum(np.std(leaf, 0), _SMALLEST_DEVIATION)), expert[0])

    def scale(leaf: Array, mean_and_deviation: tuple[np.ndarray, np.ndarray]) -> Array:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            return leaf
        mean, deviation = mean_and_deviation
        return jnp.clip((leaf - mean) / deviation, -_LARGEST, _LARGEST)

    return lambda observation: jax.tree.map(scale, observation, moments)


def init(agent: Agent, discriminator: Discriminator, key: Array) -> LearnerState:
    """Returns the initial learner state. `key` is consumed."""
    agent_key, own_key = jax.random.split(key)
    state, params = agent.init(agent_key), discriminator.init(own_key)
    extra = ImitationExtra(state.extra, params, discriminator.optimizer.init(params))
    return dataclasses.replace(state, extra=extra)


def update(
    agent: Agent, discriminator: Discriminator, state: LearnerState, batch: Trajectory, key: Array
) -> tuple[LearnerState, Metrics]:
    """Returns the state after the discriminator's steps and the agent's update with its rewards, and metrics. Consumes `key`."""
    extra: ImitationExtra = state.extra
    own_key, agent_key = jax.random.split(key)
    observation, action, weight = _flat_steps(batch)
    learn = partial(_learn, discriminator, (observation, action, weight), state.num_updates)
    keys = jax.random.split(own_key, discriminator.config.steps_per_update)
    (params, opt_state), own_metrics = jax.lax.scan(learn, (extra.discriminator, extra.opt_state), keys)

    rewards = reward_of(discriminator.config, discriminator.logits(params, observation, action)).reshape(
        batch.valid.shape
    )
    imitated = dataclasses.replace(batch, reward=jnp.where(batch.valid, rewards, 0.0))
    new, metrics = agent.update(dataclasses.replace(state, extra=extra.agent), imitated, agent_key)
    metrics = {
        **metrics,
        **jax.tree.map(jnp.mean, own_metrics),
        "imitation/reward": weighted_mean(rewards, batch.valid),
    }
    return dataclasses.replace(new, extra=ImitationExtra(new.extra, params, opt_state)), metrics


def reward_of(config: GAILConfig, logits: Array) -> Array:
    """Returns the reward of steps with these logits: -log(1 - D), or log D - log(1 - D)."""
    return jax.nn.softplus(logits) if config.reward == "positive" else logits


def discriminator_loss(
    discriminator: Discriminator, params: Params, expert: tuple[Any, Any], policy: tuple[Any, Any, Array]
) -> tuple[Array, Metrics]:
    """Returns -E_expert[log D] - E_policy[log(1 - D)] - entropy_coef E[H(D)], and metrics.

    Args:
        discriminator: The bound discriminator.
        params: Its parameters.
        expert: Observations and actions [N, ...].
        policy: Observations, actions [N, ...], and weights [N].
    """
    of_expert = discriminator.logits(params, *expert)
    of_policy, weight = discriminator.logits(params, *policy[:2]), policy[2]
    loss = jnp.mean(jax.nn.softplus(-of_expert)) + weighted_mean(jax.nn.softplus(of_policy), weight)
    entropy = 0.5 * (jnp.mean(_entropy(of_expert)) + weighted_mean(_entropy(of_policy), weight))
    metrics = {
        "imitation/loss": loss,
        "imitation/entropy": entropy,
        "imitation/expert_accuracy": jnp.mean(of_expert > 0.0),
        "imitation/policy_accuracy": weighted_mean((of_policy < 0.0).astype(jnp.float32), weight),
    }
    return loss - discriminator.config.entropy_coef * entropy, metrics


def _entropy(logits: Array) -> Array:
    """Returns the entropy in nats of a coin that shows heads with these log-odds."""
    return jax.nn.softplus(logits) - logits * jax.nn.sigmoid(logits)


def _learn(
    discriminator: Discriminator,
    steps: tuple[Any, Any, Array],
    num_updates: Array,
    carry: tuple[Params, OptState],
    key: Array,
) -> tuple[tuple[Params, OptState], Metrics]:
    """Takes one gradient step on random steps of the policy and of the expert."""
    expert, count = discriminator.expert, discriminator.config.batch_size
    if expert is None:
        raise TypeError("this agent has no demonstrations and only acts")
    keys = jax.random.split(key)
    chosen = [
        jax.random.randint(k, (count,), 0, len(each)) for k, each in zip(keys, (steps[2], expert.action), strict=True)
    ]
    policy = jax.tree.map(lambda leaf: leaf[chosen[0]], steps)
    shown = jax.tree.map(lambda leaf: jnp.asarray(leaf)[chosen[1]], (expert.observation, expert.action))
    params, opt_state = carry
    gradient, metrics = jax.grad(partial(discriminator_loss, discriminator), has_aux=True)(params, shown, policy)
    return descend(discriminator.optimizer, gradient, opt_state, params, num_updates), metrics


def _flat_steps(batch: Trajectory) -> tuple[Any, Any, Array]:
    """Returns observations, actions and weights [T B, ...] of all steps."""

    def flat(leaf: Array) -> Array:
        return leaf.reshape((-1, *leaf.shape[2:]))

    observation = jax.tree.map(lambda leaf: flat(leaf[:-1]), batch.observation)
    return observation, jax.tree.map(flat, batch.action), flat(batch.valid.astype(jnp.float32))
