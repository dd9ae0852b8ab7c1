"""A teacher around an agent with gradient steps: its policy's divergence from the student's is added to the loss.

Source: Schmitt et al. 2018, Kickstarting Deep Reinforcement Learning (arXiv:1803.03835), eq. 5, with KL(teacher || student) for the
cross-entropy, whose gradient is the same.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from agents.api import Agent, Array, GradientSteps, LearnerState, Metrics, Params, Progress, Summary, Trajectory
from agents.networks.actor_critic import ActorCritic
from agents.networks.phasic import policy_divergence
from agents.ops.gradient_steps import make_update
from agents.ops.returns import weighted_mean
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import EnvSpec

_WEIGHT = "imitation/teacher_coef"


class Teacher(NamedTuple):
    """A policy to imitate while the agent learns from rewards.

    Attributes:
        net: Network of the teacher, without memory, bound to the environment of the student.
        params: Parameters of the teacher, which stay.
        coef: Weight of the divergence in the first update.
        num_updates: Updates over which the weight falls linearly to 0; 0: it stays.
    """

    net: ActorCritic
    params: Params
    coef: float = 1.0
    num_updates: int = 0


class Lesson(NamedTuple):
    """Observations and teacher of an update, with which the student compares itself.

    Attributes:
        batch: The trajectory.
        parameters: [T, B, P] of the teacher's policy.
        weight: Weight of the divergence, float32 scalar.
    """

    batch: Trajectory
    parameters: Array
    weight: Array


def with_teacher(agent: Agent, net: ActorCritic, teacher: Teacher, spec: EnvSpec) -> Agent:
    """Returns the agent whose gradient steps also reduce the divergence of its policy from the teacher's.

    Args:
        agent: Agent whose parameters are those of `net`.
        net: Network of the student.
        teacher: Acts for no environment; it only judges the observations of the student.
        spec: Specification of the environment.

    Raises:
        UserError: If the agent does not offer its gradient steps, or its parameters are not those of the network alone; or the
            teacher has a memory.
    """
    steps = agent.gradient_steps
    if steps is None or agent.groups:
        raise UserError(
            f"a teacher adds to the gradient of a loss of trajectories: expected one policy of PPO, A2C or IMPALA, got {agent.name}"
        )
    own, expected = (jax.tree.structure(jax.eval_shape(init, jax.random.key(0))) for init in (_params(agent), net.init))
    if own != expected:
        raise UserError(
            f"a teacher needs the policy of the student alone: expected the parameters of the network, got {own}; turn off "
            f"the normalization of observations and rewards"
        )
    if teacher.net.is_recurrent:
        raise UserError("a teacher judges single observations: expected one without memory, got a recurrent network")
    divergence = partial(teacher_divergence, net, policy_divergence(spec))
    taught = GradientSteps(
        steps.num_steps,
        partial(prepare, steps, teacher),
        partial(gradient, steps, divergence),
        partial(apply, steps),
        partial(finish, steps),
    )
    return agent._replace(gradient_steps=taught, update=make_update(taught))


def _params(agent: Agent) -> Callable[[Array], Params]:
    return lambda key: agent.init(key).params


def teacher_weight(teacher: Teacher, num_updates: Array) -> Array:
    """Returns the weight of the divergence after `num_updates` updates: coef max(0, 1 - num_updates / teacher.num_updates)."""
    if not teacher.num_updates:
        return jnp.asarray(teacher.coef, jnp.float32)
    return teacher.coef * jnp.maximum(0.0, 1.0 - num_updates / teacher.num_updates)


def teacher_divergence(
    net: ActorCritic, divergence: Callable[[Array, Array], Array], params: Params, lesson: Lesson
) -> Array:
    """Returns the mean of KL(teacher || student) over the steps that count, in nats."""
    batch = lesson.batch
    parameters, _, _ = net.unroll(params, batch.observation, batch.agent_state, batch.is_first)
    kl = divergence(lesson.parameters, parameters[:-1])
    return weighted_mean(kl, batch.valid.astype(kl.dtype))


def prepare(
    steps: GradientSteps,
    teacher: Teacher,
    params: Params,
    extra: Any,
    batch: Trajectory,
    key: Array,
    num_updates: Array,
) -> tuple[tuple[Any, Lesson], Summary]:
    """Returns what the agent prepares, with the teacher's policy at each step. Consumes `key`."""
    prepared, summary = steps.prepare(params, extra, batch, key, num_updates)
    parameters, _, _ = teacher.net.unroll(teacher.params, batch.observation, (), batch.is_first)
    weight = teacher_weight(teacher, num_updates)
    return (prepared, Lesson(batch, parameters[:-1], weight)), summary


def gradient(
    steps: GradientSteps,
    divergence: Callable[[Params, Lesson], Array],
    params: Params,
    prepared: tuple[Any, Lesson],
    number: Array,
) -> tuple[Params, Metrics]:
    """Returns the gradient of the agent's loss + weight KL(teacher || student) of the whole trajectory, and metrics."""
    inner, lesson = prepared
    grads, metrics = steps.gradient(params, inner, number)
    kl, own = jax.value_and_grad(divergence)(params, lesson)
    grads = jax.tree.map(lambda of_agent, of_teacher: of_agent + lesson.weight * of_teacher, grads, own)
    return grads, {**metrics, "imitation/teacher_kl": kl, _WEIGHT: lesson.weight}


def apply(steps: GradientSteps, progress: Progress, grads: Params, metrics: Metrics) -> Progress:
    """Returns the progress after the agent's step."""
    return steps.apply(progress, grads, _without(metrics))


def finish(
    steps: GradientSteps, state: LearnerState, progress: Progress, summary: Summary, metrics: Metrics
) -> tuple[LearnerState, Metrics]:
    """Returns the next learner state, and metrics averaged over the gradient steps."""
    state, own = steps.finish(state, progress, summary, _without(metrics))
    return state, own | {name: jnp.mean(values) for name, values in metrics.items() if name not in _without(metrics)}


def _without(metrics: Metrics) -> Metrics:
    return {name: value for name, value in metrics.items() if not name.startswith("imitation/teacher")}
