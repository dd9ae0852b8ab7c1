"""Adversarial imitation (GAIL, AIRL) around an on-policy agent: rewards come from a discriminator, not the environment.

Sources: GAIL, Ho and Ermon 2016 (arXiv:1606.03476), algorithm 1; AIRL, Fu et al. 2018 (arXiv:1710.11248), algorithm 1. The
wrapped agent is the policy's optimizer.

The discriminator is no part of the parameters that act. It gets a few gradient steps in each update, before the agent learns from
the rewards that it then gives. Episode returns in metrics stay those of the environment.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from agents.api import Action, Agent, Array, LearnerState, Metrics, Observation, OptState, Params, Trajectory
from agents.networks.config import NetworkConfig
from agents.networks.critics import CriticEnsemble, make_critics
from agents.networks.observation_scale import normalized_leaves, normalized_spec
from agents.ops import validate
from agents.ops.action_scaling import continuous_actions
from agents.ops.gradient_descent import descend
from agents.ops.optimizers import OptimizerConfig, make_optimizer
from agents.ops.returns import weighted_mean
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import DiscreteSpec, EnvSpec, num_frames
from envpool_bridge.spec.tree import items, lookup, unflatten

Algorithm = Literal["gail", "airl"]
RewardForm = Literal["positive", "signed"]
_LARGEST = 10.0  # deviations of a normalized observation
_SMALLEST_DEVIATION = 1e-3


class Steps(NamedTuple):
    """Steps of an expert or of the policy.

    Attributes:
        observation: [S, ...] a leaf.
        action: [S, ...].
        next_observation: [S, ...] a leaf; () for GAIL, as all that follow.
        terminated: [S] bool, no step follows by the task's rules.
        log_prob: [S] of the action under the policy, in nats; of an expert it is computed when needed.
    """

    observation: Any
    action: Any
    next_observation: Any = ()
    terminated: Any = ()
    log_prob: Any = ()


@dataclasses.dataclass(frozen=True)
class GAILConfig:
    """Settings of the discriminator D, the probability that a step is the expert's.

    Attributes:
        algorithm: "gail", or "airl", which learns a reward of the observation alone, apart from a shaping term.
        reward: Reward of GAIL. "positive": -log(1 - D), for tasks in which a longer episode is better. "signed": log D - log(1 -
            D), which may also reward an early end, and is AIRL's.
        steps_per_update: Gradient steps in each update.
        batch_size: Steps of the expert, and as many of the policy, of a gradient step.
        learning_rate: Learning rate of the discriminator.
        entropy_coef: Weight of its entropy, against overconfidence.
        hidden_sizes: Hidden sizes of its layers.
        discount: g of the shaping term of AIRL.
    """

    algorithm: Algorithm = "gail"
    reward: RewardForm = "positive"
    steps_per_update: int = 8
    batch_size: int = 256
    learning_rate: float = 3e-4
    entropy_coef: float = 1e-3
    hidden_sizes: tuple[int, ...] = (64, 64)
    discount: float = 0.99

    def __post_init__(self) -> None:
        validate.choices(self)
        validate.fraction(self, "discount")
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
        logits: Maps (params, steps [N]) to log D - log(1 - D), [N].
        optimizer: Optimizer of the parameters.
        expert: Steps of the expert; None where nothing is learned.
    """

    config: GAILConfig
    init: Callable[[Array], Params]
    logits: Callable[[Params, Steps], Array]
    optimizer: optax.GradientTransformationExtraArgs
    expert: Steps | None


def with_imitation(agent: Agent, config: GAILConfig, spec: EnvSpec, expert: Steps | None) -> Agent:
    """Returns the agent that imitates an expert.

    Args:
        agent: Learns from trajectories, with one policy.
        config: Settings of the discriminator.
        spec: Specification of the environment.
        expert: Demonstrations; None for an agent that only acts, such as one that is loaded.

    Raises:
        UserError: If the agent learns from replay or has several policies, frames are stacked, there are no demonstrations, or
            actions are neither one discrete number nor bounded arrays (GAIL).
    """
    if not isinstance(agent, Agent) or agent.groups or agent.bind_replay is not None:
        raise UserError(
            f"imitation replaces the rewards of each trajectory: expected one policy that learns from trajectories, such as PPO, "
            f"got {agent.name}"
        )
    if config.algorithm == "airl" and agent.log_prob is None:
        raise UserError(
            f"AIRL needs the probabilities of actions, without memory: agent {agent.name} does not give them"
        )
    if num_frames(spec) > 1:
        raise UserError(
            f"{spec.env_id}: demonstrations have single frames: expected frame_stack 1, got {num_frames(spec)}"
        )
    if expert is not None and not len(jax.tree.leaves(expert.action)[0]):
        raise UserError("imitation needs steps of an expert: got none")
    discriminator = make_discriminator(config, spec, expert)
    return agent._replace(
        init=partial(init, agent, discriminator),
        update=partial(update, agent, discriminator),
        gradient_steps=None,
        advantage=None,
    )


def make_discriminator(config: GAILConfig, spec: EnvSpec, expert: Steps | None) -> Discriminator:
    """Returns the discriminator; raises UserError as `with_imitation` does."""
    spec = normalized_spec(spec, expert is not None)
    network = NetworkConfig(hidden_sizes=config.hidden_sizes, activation="tanh")
    normalize = _normalizer(spec, expert)
    if config.algorithm == "airl":
        critics = make_critics(network, spec, num_actions=0, num_critics=2)
        logits = partial(_airl_logits, critics, normalize, config.discount)
    else:
        size, encode = _action_vectors(spec)
        critics = make_critics(network, spec, size, num_critics=1)

        def logits(params: Params, steps: Steps) -> Array:
            return critics.values(params, normalize(steps.observation), encode(steps.action))[0]

    optimizer = make_optimizer(OptimizerConfig(epsilon=1e-8), optax.constant_schedule(config.learning_rate))
    return Discriminator(config, critics.init, logits, optimizer, expert)


def _airl_logits(
    critics: CriticEnsemble,
    normalize: Callable[[Observation], Observation],
    discount: float,
    params: Params,
    steps: Steps,
) -> Array:
    """Returns f - log pi(a|o), f = g(o) + discount h(o') - h(o), [N]; the two critics are g and h. h is 0 after a terminal step."""
    no_action = jnp.zeros((*steps.log_prob.shape, 0))
    reward, shaping = critics.values(params, normalize(steps.observation), no_action)
    following = critics.values(params, normalize(steps.next_observation), no_action)[1]
    return reward + jnp.where(steps.terminated, 0.0, discount * following) - shaping - steps.log_prob


def _action_vectors(spec: EnvSpec) -> tuple[int, Callable[[Action], Array]]:
    """Returns the size of an action's vector, and the function from actions [N, ...] to vectors."""
    if isinstance(spec.action, DiscreteSpec):
        count = spec.action.num_values
        return count, lambda action: jax.nn.one_hot(action, count)
    try:
        actions = continuous_actions(spec)
    except UserError as error:
        raise UserError(
            f"{spec.env_id}: imitation by GAIL expected one discrete action, or arrays of floats within finite bounds, got "
            f"{spec.action}; use --imitation.algorithm airl, whose discriminator sees no actions"
        ) from error
    return actions.size, actions.to_unit


def _normalizer(spec: EnvSpec, expert: Steps | None) -> Callable[[Observation], Observation]:
    """Returns the function that shifts and scales the `normalized_leaves` to the expert's mean 0 and deviation 1."""
    if expert is None:
        return lambda observation: observation

    def moments_of(leaf: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        # float32 sums of millions of steps are wrong.
        mean, deviation = (np.asarray(moment(leaf, 0, np.float64)) for moment in (np.mean, np.std))
        return mean.astype(np.float32), np.maximum(deviation, _SMALLEST_DEVIATION).astype(np.float32)

    moments = {path: moments_of(lookup(expert.observation, path)) for path, _ in normalized_leaves(spec)}

    def normalized(observation: Observation) -> Observation:
        values = dict(items(observation))
        for path, (mean, deviation) in moments.items():
            values[path] = jnp.clip((values[path] - mean) / deviation, -_LARGEST, _LARGEST)
        return unflatten(observation, list(values.values()))

    return normalized


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
    steps, log_prob = _flat_steps(batch), None
    if discriminator.config.algorithm == "airl" and agent.log_prob is not None:
        log_prob = partial(agent.log_prob, state.params)
        steps = steps._replace(log_prob=log_prob(steps.observation, steps.action))
    weight = batch.valid.reshape(-1).astype(jnp.float32)
    learn = partial(_learn, discriminator, steps, weight, log_prob, state.num_updates)
    keys = jax.random.split(own_key, discriminator.config.steps_per_update)
    (params, opt_state), own_metrics = jax.lax.scan(learn, (extra.discriminator, extra.opt_state), keys)

    rewards = reward_of(discriminator.config, discriminator.logits(params, steps)).reshape(batch.valid.shape)
    imitated = dataclasses.replace(batch, reward=jnp.where(batch.valid, rewards, 0.0))
    new, metrics = agent.update(dataclasses.replace(state, extra=extra.agent), imitated, agent_key)
    metrics = {
        **metrics,
        **jax.tree.map(jnp.mean, own_metrics),
        "imitation/reward": weighted_mean(rewards, batch.valid),
    }
    return dataclasses.replace(new, extra=ImitationExtra(new.extra, params, opt_state)), metrics


def reward_of(config: GAILConfig, logits: Array) -> Array:
    """Returns the reward of steps with these logits: -log(1 - D), or log D - log(1 - D), which is AIRL's."""
    is_positive = config.algorithm == "gail" and config.reward == "positive"
    return jax.nn.softplus(logits) if is_positive else logits


def discriminator_loss(
    discriminator: Discriminator, params: Params, expert: Steps, policy: Steps, weight: Array
) -> tuple[Array, Metrics]:
    """Returns -E_expert[log D] - E_policy[log(1 - D)] - entropy_coef E[H(D)], and metrics.

    Args:
        discriminator: The bound discriminator.
        params: Parameters of the discriminator.
        expert: Steps of the expert [N].
        policy: Steps of the policy [N].
        weight: [N] of the policy's steps.
    """
    of_expert, of_policy = discriminator.logits(params, expert), discriminator.logits(params, policy)
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
    steps: Steps,
    weight: Array,
    log_prob: Callable[[Observation, Action], Array] | None,
    num_updates: Array,
    carry: tuple[Params, OptState],
    key: Array,
) -> tuple[tuple[Params, OptState], Metrics]:
    """Takes one gradient step on random steps of the policy and of the expert."""
    expert, count = discriminator.expert, discriminator.config.batch_size
    if expert is None:
        raise TypeError("this agent has no demonstrations and only acts")
    keys, counted = jax.random.split(key), (weight, jax.tree.leaves(expert.action)[0])
    own, others = (jax.random.randint(k, (count,), 0, len(each)) for k, each in zip(keys, counted, strict=True))
    policy, weight = jax.tree.map(lambda leaf: leaf[own], (steps, weight))
    shown: Steps = jax.tree.map(lambda leaf: jnp.asarray(leaf)[others], expert)
    if log_prob is not None:
        shown = shown._replace(log_prob=log_prob(shown.observation, shown.action))
    params, opt_state = carry
    loss = jax.grad(partial(discriminator_loss, discriminator), has_aux=True)
    gradient, metrics = loss(params, shown, policy, weight)
    return descend(discriminator.optimizer, gradient, opt_state, params, num_updates), metrics


def _flat_steps(batch: Trajectory) -> Steps:
    """Returns all steps [T B], without log-probabilities."""

    def flat(leaf: Array) -> Array:
        return leaf.reshape((-1, *leaf.shape[2:]))

    observation, following = (
        jax.tree.map(lambda leaf, part=part: flat(leaf[part]), batch.observation)
        for part in (slice(None, -1), slice(1, None))
    )
    return Steps(observation, jax.tree.map(flat, batch.action), following, flat(batch.terminated))
