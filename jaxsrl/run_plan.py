"""The interpreter of plans: `run(plan, agent, env, config)`. It knows no algorithm, and no algorithm knows it."""

import contextlib
from pathlib import Path
from typing import Any

import jax

from agents.api import Agent, AnyAgent
from agents.transforms.frame_stacking import with_stacked_frames
from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.envs.function_source import AnyEnv
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import EnvSpec, spec_to_dict
from jaxsrl.cluster.collectors import ClusterCollectors
from jaxsrl.cluster.learners.run import WholeRun, run_together, several
from jaxsrl.cluster.placement import place_of
from jaxsrl.config.run_config import RunConfig
from jaxsrl.config.serialization import to_json
from jaxsrl.envs.registry import make_env
from jaxsrl.learner.learning_agent import kept_bytes, learning_agent
from jaxsrl.learner.mesh import LearnerMesh
from jaxsrl.machine.cpu_latency import disable_cpu_idle
from jaxsrl.machine.program_cache import enable_program_cache
from jaxsrl.machine.resources import Resources
from jaxsrl.plan.passes.for_agent import plan_for_agent
from jaxsrl.plan.passes.replay import replays_on_host
from jaxsrl.plan.placement import devices_of
from jaxsrl.plan.plan import Plan
from jaxsrl.run_directory import RunDirectory
from jaxsrl.training.device_trainable import DeviceTrainable
from jaxsrl.training.host_trainable import HostTrainable
from jaxsrl.training.preflight import check_run, jax_env_of_source, runs_on_device
from jaxsrl.training.setup import RunReport, TrainingSetup
from jaxsrl.training.train import train


def run_name(config: RunConfig, agent: AnyAgent, spec: EnvSpec) -> str:
    """Name of the run's directory."""
    return config.name or f"{agent.name}_{spec.env_id.replace('/', '-')}_seed{config.seed}"


def run(
    plan: Plan,
    agent: AnyAgent,
    env: str | EnvConfig | AnyEnv,
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
        env: id or configuration of an environment, a function that makes one, or a source of rows.
        config: sizes, budget and directory; the plan was made from it.
        experiment: the value that holds everything which changes the run; saved as config.json.
        spec: of the environment, if already known.
        quiet: no output on the terminal.

    Raises:
        UserError: something cannot run as asked; raised before any process starts.
        LostLearnerError: of several learner processes, another one failed or was lost.
        EnvPoolError: an environment failed.
    """
    if plan.num_rows != config.num_envs or plan.shape.rollout_length != config.rollout_length:
        raise UserError("the plan was made from another RunConfig: num_envs or rollout_length differ")
    source = make_env(env)
    spec = spec or source.spec()
    plan = plan_for_agent(plan, agent, config.replay_place)
    saved = to_json(experiment) if experiment is not None else {"run": to_json(config)}
    identity = {"agent_name": agent.name, "experiment": saved, "env_spec": spec_to_dict(spec)}
    path = Path(config.directory) / run_name(config, agent, spec)
    with contextlib.ExitStack() as held:
        if config.keep_cores_awake:
            held.enter_context(disable_cpu_idle())
        if (processes := several(config)) is not None:
            return run_together(processes, WholeRun(plan, agent, source, spec, config, path, identity, quiet))
        enable_program_cache(Path(config.directory), jax.default_backend())
        place = held.enter_context(place_of(config, plan, Resources.detect(), kept_bytes(config, agent, spec)))
        plan = place.plan
        check_run(plan, agent, source, spec, place.resources)
        directory = held.enter_context(RunDirectory(path))
        directory.validate(identity)
        trained = with_stacked_frames(agent, spec)
        if isinstance(trained, Agent) or not replays_on_host(plan):
            mesh = LearnerMesh(devices_of(plan.learner)) if plan.replay is not None else None
            trained = learning_agent(agent, spec, plan.num_rows, plan.shape.rollout_length, mesh)
        setup = TrainingSetup(plan, trained, source, spec, config, directory, identity, quiet)
        if runs_on_device(plan) and isinstance(trained, Agent):
            return train(setup, DeviceTrainable(setup, trained, jax_env_of_source(source)))
        collectors = None if place.open_engine is None else ClusterCollectors(setup, place.open_engine)
        return train(setup, HostTrainable(setup, collectors))
