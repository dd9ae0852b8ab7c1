"""Validation before a run starts: a plan, an agent and environments that do not fit each other."""

import math
from typing import Any

import jax

from agents.api import Agent, AnyAgent, GradientSteps
from envpool_bridge.envs.mixed_rows import MixedSource
from envpool_bridge.envs.protocol import EnvSource, reset_options
from envpool_bridge.errors import UserError
from envpool_bridge.shm.segment import validate_machine
from envpool_bridge.spec.specs import NEXT_LEVEL, EnvSpec
from jaxsrl.collect.slot_layout import agent_layout, trajectory_shapes
from jaxsrl.config.run_config import RunConfig
from jaxsrl.envs.cpu_rows import JaxSource
from jaxsrl.envs.protocol import JaxEnv
from jaxsrl.learner.learning_agent import learning_agent, replay_bytes
from jaxsrl.machine.resources import Resources
from jaxsrl.plan.fragment import Carries, Devices, Processes
from jaxsrl.plan.load_plan import largest_lag
from jaxsrl.plan.passes.policy_groups import check_groups
from jaxsrl.plan.plan import Plan
from jaxsrl.plan.validate import nearest_multiple, validate_memory, validate_plan, validate_replay_memory


def runs_on_device(plan: Plan) -> bool:
    """Returns whether the environments themselves are on devices."""
    return isinstance(plan.environments.placement, Devices)


def check_run(plan: Plan, agent: AnyAgent, source: EnvSource, spec: EnvSpec, resources: Resources) -> None:
    """Raises for a run that cannot start; starts nothing.

    Raises:
        UserError: says what does not fit, and what to change.
    """
    validate_plan(plan, resources)
    if plan.is_offline:
        return
    if isinstance(plan.environments.placement, Processes) and not plan.environments.nodes:
        validate_machine()
    if runs_on_device(plan):
        jax_env_of_source(source)
    largest = largest_lag(agent)
    if largest is not None and plan.max_policy_lag > largest:
        raise UserError(
            f"plan {plan.name}: agent {agent.name} corrects a policy lag of at most {largest}, got {plan.max_policy_lag}: omit "
            f"--run.max-policy-lag, pass the agent to make_plan, or use impala or ppo, which have an importance ratio"
        )
    if plan.parameter_server is not None:
        gradient_steps_of(agent, plan)
    if plan.merge_lanes and jax.tree.leaves(jax.eval_shape(lambda: agent.initial_agent_state(1))):
        raise UserError(
            f"plan {plan.name}: fragment {plan.inference.name}: agent {agent.name} carries state between steps, which merged calls "
            f"do not: use --inference.batching lane"
        )
    check_groups(plan, agent)
    _check_whole_environments(plan, spec)
    validate_memory(plan, agent_layout(spec, plan.shape, agent), resources)
    sizes = (plan.num_rows, plan.shape.rollout_length)
    validate_replay_memory(plan, replay_bytes(agent, spec, *sizes), resources)
    _check_update(learning_agent(agent, spec, *sizes), spec, plan)


def check_curriculum(config: RunConfig, plan: Plan, source: EnvSource, spec: EnvSpec) -> None:
    """Rejects a curriculum whose stages the environments or the plan do not have.

    Raises:
        UserError: says what does not fit, and what to change.
    """
    if not config.curriculum.is_on:
        return
    remote = config.cluster.is_used or config.distributed.is_on
    if plan.is_offline or runs_on_device(plan) or remote or config.learner.gradients == "asynchronous":
        raise UserError(
            f"plan {plan.name}: a curriculum changes the stage of environments in workers of this machine while one process "
            "learns: use --plan single_learner_fine without --cluster and --distributed flags, or no --curriculum.returns"
        )
    last = config.curriculum.last_stage(spec.stage)
    if last is None:
        raise UserError("curriculum.returns end stages, but the environments receive none: use --env.stage 0 with it")
    maker: Any = source.sources[0] if isinstance(source, MixedSource) else source
    env = maker.make_env()
    try:
        env.reset(seed=0, options=reset_options(last))
    except Exception as error:
        raise UserError(
            f"curriculum.returns has {last - (spec.stage or 0)} returns, so stage {last} is the last one, which {spec.env_id} "
            f"does not start: {type(error).__name__}: {error}"
        ) from error
    finally:
        env.close()


def check_supervision(config: RunConfig, plan: Plan) -> None:
    """Rejects the isolation of failing environments where no worker steps them.

    Raises:
        UserError: names plans that have workers.
    """
    choice = config.pool.supervision.bad_env_output
    if choice != "raise" and not isinstance(plan.environments.placement, Processes):
        raise UserError(
            f"plan {plan.name}: pool.supervision.bad_env_output {choice} is for environments in workers: use --plan "
            f"single_learner_fine, or --pool.supervision.bad-env-output raise"
        )


def check_inference(config: RunConfig, plan: Plan) -> None:
    """Rejects inference on the CPU where environments, acting and learning are one program.

    Raises:
        UserError: names plans that act on devices of their own.
    """
    if config.inference.platform == "cpu" and runs_on_device(plan):
        raise UserError(
            f"plan {plan.name}: inference.platform cpu is for plans whose inference is a program of its own: use --plan "
            f"single_learner_fine, or --inference.platform auto"
        )


def check_levels(config: RunConfig, plan: Plan, agent: AnyAgent, spec: EnvSpec) -> None:
    """Rejects levels where the agent of another process or machine would choose them, and with stages of the run.

    Raises:
        UserError: says what does not fit, and what to change.
    """
    if not spec.levels:
        return
    if plan.is_offline or config.cluster.is_used or config.distributed.is_on:
        raise UserError(
            f"plan {plan.name}: levels are for environments of this machine while one process learns: use no --cluster and "
            f"--distributed flags, or no --env.levels"
        )
    if NEXT_LEVEL not in agent.extras:
        raise UserError(
            f"{spec.env_id} has levels, which {agent.name} does not choose: make it with "
            f"agents.transforms.level_replay.with_level_replay, or train an Experiment"
        )
    if config.curriculum.is_on:
        raise UserError("level replay chooses the stages of episodes: use either --env.levels or --curriculum.returns")


def _check_whole_environments(plan: Plan, spec: EnvSpec) -> None:
    """Rejects a plan that cuts a multi-agent environment in two.

    Raises:
        UserError: names the number of rows that would do.
    """
    agents, placements = spec.rows_per_env, [learner.placement for learner in plan.learners]
    devices = math.lcm(*[len(placement.indices) if isinstance(placement, Devices) else 1 for placement in placements])
    parts = plan.shape.num_parts * plan.environments.replicas
    if plan.shape.rows_per_part % agents or plan.num_rows % (agents * devices):
        whole = nearest_multiple(plan.num_rows, math.lcm(parts, devices) * agents)
        raise UserError(
            f"plan {plan.name}: fragment {plan.environments.name}: {spec.env_id} has {agents} agents, each a row, but "
            f"{plan.num_rows} rows over {parts} parts and {devices} devices cut an environment in two: "
            f"use --run.num-envs {whole}"
        )


def _check_update(agent: Agent, spec: EnvSpec, plan: Plan) -> None:
    """Traces the agent's update on trajectories of the plan's sizes, so that sizes that do not fit raise now.

    Raises:
        UserError: If the agent rejects its settings: minibatches that do not divide, say.
    """
    gradients = plan.channel(Carries.GRADIENTS)
    learns_alone = gradients is not None and not gradients.synchronous  # each replica, from its own rows
    rows = plan.num_rows // plan.learner.replicas if learns_alone else plan.num_rows
    shapes = trajectory_shapes(agent, spec, rows, plan.shape.rollout_length)
    key = jax.random.key(0)
    jax.eval_shape(agent.update, jax.eval_shape(agent.init, key), shapes, key)


def jax_env_of_source(source: EnvSource) -> JaxEnv:
    """Returns the environment as pure functions.

    Raises:
        UserError: If the source's environments are not written in JAX.
    """
    if not isinstance(source, JaxSource):
        raise UserError(
            "plan device_only: fragment environments: an environment on a device must be written in JAX, got "
            f"{type(source).__name__}: use --env.suite jax (CartPole-v1), gymnax, brax, jumanji or pgx, or another --plan"
        )
    return source.make_jax_env()


def gradient_steps_of(agent: AnyAgent, plan: Plan) -> GradientSteps:
    """Returns the gradient steps of the agent's update.

    Raises:
        UserError: If it is not.
    """
    if not isinstance(agent, Agent) or agent.gradient_steps is None:
        raise UserError(
            f"plan {plan.name}: a parameter server needs an update that is cut into gradient steps, which agent "
            f"{agent.name} has not: use another --plan (multiple_learners shares gradients without a server)"
        )
    return agent.gradient_steps
