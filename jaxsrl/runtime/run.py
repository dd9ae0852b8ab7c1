"""run(plan, agent, make_env): interprets a plan. Nothing in here knows an algorithm, nothing in an algorithm knows of this."""

from pathlib import Path
from typing import Any

import jax

from agents.api import Agent, Trajectory
from envpool_bridge.adapters.rows import EnvSource
from envpool_bridge.errors import UserError
from envpool_bridge.layout import PoolShape, make_layout
from envpool_bridge.specs import EnvSpec, spec_to_dict
from jaxsrl.config import RunConfig, to_json
from jaxsrl.dataflow.plan import Plan, plan_to_json
from jaxsrl.dataflow.resources import Resources
from jaxsrl.dataflow.validate import validate_memory, validate_plan
from jaxsrl.evaluate import MakeEnv, as_source
from jaxsrl.jax_envs.protocol import JaxEnv
from jaxsrl.jax_envs.rows import JaxSource
from jaxsrl.run_directory import PLAN, RunDirectory, write_json
from jaxsrl.runtime.device_training import DeviceTraining
from jaxsrl.runtime.host_training import HostTraining
from jaxsrl.runtime.interpret import runs_on_device
from jaxsrl.runtime.training import RunReport, TrainingSetup


def run_name(config: RunConfig, agent: Agent, spec: EnvSpec) -> str:
    """Name of the run's directory."""
    return config.name or f"{agent.name}_{spec.env_id.replace('/', '-')}_seed{config.seed}"


def run(
    plan: Plan,
    agent: Agent,
    make_env: MakeEnv,
    config: RunConfig,
    *,
    experiment: Any = None,
    spec: EnvSpec | None = None,
    quiet: bool = False,
) -> RunReport:
    """Trains `agent` as `plan` places it; resumes if the run directory holds a checkpoint.

    Args:
        plan: from a distribution policy.
        agent: from `make_<algorithm>`.
        make_env: a source of rows, or a function that makes one Gymnasium environment.
        config: sizes, budget and directory; the plan was made from it.
        experiment: the dataclass tree that holds everything which changes the run; saved as config.json.
        spec: of the environment, if already known.
        quiet: no output on the terminal.

    Raises:
        UserError: something cannot run as asked; raised before any process starts.
        BridgeError: an environment failed.
    """
    resources = Resources.detect()
    validate_plan(plan, resources)
    if plan.num_rows != config.num_envs or plan.shape.rollout_length != config.rollout_length:
        raise UserError("the plan was made from another RunConfig: num_envs or rollout_length differ")
    source = as_source(make_env)
    spec = spec or source.spec()
    if runs_on_device(plan):
        jax_env_of_source(source)
    validate_memory(plan, make_layout(spec, plan.shape, agent.extras), resources)
    check_update(agent, spec, plan)
    saved = to_json(experiment) if experiment is not None else {"run": to_json(config)}
    identity = {"agent_name": agent.name, "experiment": saved, "env_spec": spec_to_dict(spec)}
    with RunDirectory(Path(config.directory) / run_name(config, agent, spec)) as directory:
        directory.claim(identity)
        write_json(directory.path / PLAN, plan_to_json(plan))
        setup = TrainingSetup(plan, agent, source, spec, config, directory, identity, quiet)
        if runs_on_device(plan):
            return DeviceTraining(setup, jax_env_of_source(source)).train()
        return HostTraining(setup).train()


def check_update(agent: Agent, spec: EnvSpec, plan: Plan) -> None:
    """Traces the agent's update on trajectories of the plan's sizes, so that what does not fit is refused now.

    Raises:
        UserError: from the agent: minibatches that do not divide, say.
    """
    whole = PoolShape(1, 1, 1, plan.num_rows, plan.shape.rollout_length, 1)
    layout = make_layout(spec, whole, agent.extras)
    arrays = {field.name: jax.ShapeDtypeStruct(field.shape, field.dtype) for field in layout.fields}
    extras = {name.removeprefix("extras/"): arrays.pop(name) for name in list(arrays) if name.startswith("extras/")}
    arrays.pop("incarnation")
    key = jax.random.key(0)
    trajectory = Trajectory(**arrays, extras=extras)  # pyright: ignore[reportArgumentType]
    jax.eval_shape(agent.update, jax.eval_shape(agent.init, key), trajectory, key)


def jax_env_of_source(source: EnvSource) -> JaxEnv:
    """The environment as pure functions.

    Raises:
        UserError: the source's environments are not written in JAX.
    """
    if not isinstance(source, JaxSource):
        raise UserError(
            "plan device_only: fragment environments: an environment on a device must be written in JAX, got "
            f"{type(source).__name__}: use --env.suite jax (CartPole-v1), gymnax, brax or jumanji, or another --policy"
        )
    return source.make_jax_env()
