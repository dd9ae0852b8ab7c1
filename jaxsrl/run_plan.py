"""The interpreter of plans: `run(plan, agent, env, config)`. It knows no algorithm, and no algorithm knows it."""

import contextlib
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from agents.api import Agent, AnyAgent
from agents.catalog import find_algorithm
from agents.networks.config import NetworkConfig
from agents.networks.policy_head import describe_narrow_policy
from agents.transforms.frame_stacking import with_stacked_frames
from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.envs.fingerprint import fingerprint
from envpool_bridge.envs.function_source import AnyEnv
from envpool_bridge.envs.protocol import EnvSource
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import EnvSpec, spec_to_dict
from jaxsrl.checkpoints.run_directory import NullRunDirectory, RunDirectory
from jaxsrl.cluster.collectors import ClusterCollectors
from jaxsrl.cluster.learners.collectors import ProcessCollectors
from jaxsrl.cluster.learners.coordinator import ProcessCoordinator
from jaxsrl.cluster.learners.processes import Processes, learner_processes
from jaxsrl.cluster.placement import Placement, place_run
from jaxsrl.config.run_config import RunConfig
from jaxsrl.config.run_name import python_run_name
from jaxsrl.config.serialization import to_json
from jaxsrl.envs.registry import make_env
from jaxsrl.evaluation.evaluate import describe_limit
from jaxsrl.evaluation.while_training import EvaluateWhileTraining, evaluation_source, validate_evaluation
from jaxsrl.evaluation.worker_rows import in_workers
from jaxsrl.learner.learning_agent import kept_bytes, learning_agent
from jaxsrl.learner.mesh import LearnerMesh
from jaxsrl.machine.cpu_latency import disable_cpu_idle
from jaxsrl.machine.program_cache import enable_program_cache
from jaxsrl.machine.provenance import read_versions
from jaxsrl.machine.resources import Resources
from jaxsrl.plan.passes.apply import add_agent_fragments
from jaxsrl.plan.passes.replay import replays_on_host
from jaxsrl.plan.placement import devices_of
from jaxsrl.plan.plan import Plan, plan_to_json
from jaxsrl.training.callbacks import Callback
from jaxsrl.training.collectors import CollectorFactory
from jaxsrl.training.control import Control
from jaxsrl.training.coordinator import Coordinator
from jaxsrl.training.dataset_replay import check_dataset, describe_other_environment
from jaxsrl.training.device_trainable import DeviceTrainable
from jaxsrl.training.host_trainable import HostTrainable
from jaxsrl.training.keep_models import KeepModels
from jaxsrl.training.offline_trainable import OfflineTrainable
from jaxsrl.training.preflight import (
    check_curriculum,
    check_inference,
    check_levels,
    check_run,
    check_supervision,
    jax_env_of_source,
    runs_on_device,
)
from jaxsrl.training.run_checkpoints import report_disk
from jaxsrl.training.setup import RunReport, TrainingSetup
from jaxsrl.training.step_recorder import check_recording
from jaxsrl.training.stop_rules import stop_rules, with_gradient_budget
from jaxsrl.training.train import TrainingLoop
from jaxsrl.training.trainable import Trainable

_PARTS = ("agent", "network", "make_agent")
"""Fields of an Experiment that may contain functions."""


def run_path(config: RunConfig, agent: AnyAgent, spec: EnvSpec, experiment: Any) -> Path:
    """Returns the run directory, as an absolute path: environments and callbacks may change the working directory."""
    name = config.name or python_run_name(experiment, config, agent, spec.env_id)
    return (Path(config.directory) / name).absolute()


def run(
    plan: Plan,
    agent: AnyAgent,
    env: str | EnvConfig | AnyEnv,
    config: RunConfig,
    *,
    experiment: Any = None,
    spec: EnvSpec | None = None,
    quiet: bool = False,
    callbacks: Sequence[Callback] = (),
) -> RunReport:
    """Trains `agent` as `plan` places it; resumes if the run directory holds a checkpoint.

    Args:
        plan: Plan from `make_plan`, or your own.
        agent: Agent from `make_<algorithm>`.
        env: id or configuration of an environment, a function that makes one, or a source of rows.
        config: Configuration of the run; the plan was made from it.
        experiment: the value that holds everything which changes the run; saved as config.json.
        spec: Specification of the environment, if already known.
        quiet: no output on the terminal.
        callbacks: called while the run trains.

    Raises:
        UserError: something cannot run as asked; raised before any process starts.
        FailedLearnerError, LostLearnerError: If another learner process failed or was lost.
        EnvPoolError: If an environment failed.
    """
    config = _validated_config(plan, config, agent)
    source = make_env(env)
    callbacks = [*make_callbacks(config, agent, source, getattr(experiment, "env", env)), *callbacks]
    spec = spec or source.spec()
    plan = add_agent_fragments(plan, agent, config.replay)
    identity = make_identity(agent, experiment, config, spec, source)
    path = run_path(config, agent, spec, experiment)
    with contextlib.ExitStack() as held:
        if config.machine.disable_cpu_idle:
            held.enter_context(disable_cpu_idle())
        processes = learner_processes(config)
        if processes is not None:
            held.enter_context(processes.together())
        enable_program_cache(Path(config.directory), jax.default_backend())
        kept = kept_bytes(config, agent, spec)
        placement = held.enter_context(place_run(config, plan, Resources.detect(), kept, processes))
        check_run(plan := placement.plan, agent, source, spec, placement.resources)
        check_options(config, plan, agent, source, spec)
        coordinator = Coordinator() if processes is None else ProcessCoordinator(processes, config)
        coordinator.validate_identity({**identity, "plan": plan_to_json(plan), **read_versions()})
        with open_directory(path, experiment, config, processes) as directory:
            directory.validate(identity)
            trained, is_quiet = trained_agent(plan, agent, spec), quiet or not coordinator.is_main
            setup = TrainingSetup(plan, trained, source, spec, config, directory, identity, is_quiet)
            trainable = _make_trainable(setup, coordinator, placement, experiment)
            report = TrainingLoop(setup, trainable, coordinator, callbacks).run()
            if processes is not None:
                state = jax.device_get(report.state)  # host arrays, which this process can use without the others
                report = dataclasses.replace(report, state=state, wrote_directory=coordinator.is_main)
        if processes is not None:
            processes.leave()
        return report


def _validated_config(plan: Plan, config: RunConfig, agent: AnyAgent) -> RunConfig:
    """Returns the configuration with the budget of gradient steps."""
    if plan.num_rows != config.num_envs or plan.shape.rollout_length != config.rollout_length:
        raise UserError("the plan was made from another RunConfig: num_envs or rollout_length differ")
    if config.seeds > 1:
        raise UserError(
            f"run trains one seed, got run.seeds {config.seeds}: use Experiment.train_seeds, or jaxsrl train"
        )
    return with_gradient_budget(config, agent)


def check_options(config: RunConfig, plan: Plan, agent: AnyAgent, source: EnvSource, spec: EnvSpec) -> None:
    """Rejects options that the plan, the agent or the environments do not have.

    Raises:
        UserError: says what does not fit, and what to change.
        CorruptDatasetError: If a file of the dataset is missing.
    """
    check_dataset(config, plan, agent, spec)
    check_recording(config, plan)
    check_supervision(config, plan)
    check_inference(config, plan)
    check_levels(config, plan, agent, spec)
    check_curriculum(config, plan, source, spec)


def trained_agent(plan: Plan, agent: AnyAgent, spec: EnvSpec) -> AnyAgent:
    """Returns the agent for single frames, with replay around it where that is on devices."""
    stacked = with_stacked_frames(agent, spec)
    if replays_on_host(plan) and not isinstance(stacked, Agent):
        return stacked
    mesh = LearnerMesh(devices_of(plan.learner)) if plan.replay is not None else None
    return learning_agent(agent, spec, plan.num_rows, plan.shape.rollout_length, mesh)


def open_directory(path: Path, experiment: Any, config: RunConfig, processes: Processes | None) -> RunDirectory:
    """Returns the run directory; of several learner processes only the main one writes it."""
    if processes is not None and not processes.is_main:
        return NullRunDirectory(path)
    directory = RunDirectory(path, experiment or {"run": config})
    if processes is not None:
        processes.log = directory.log
    return directory


def make_identity(
    agent: AnyAgent, experiment: Any, config: RunConfig, spec: EnvSpec, source: EnvSource
) -> dict[str, Any]:
    """Returns the metadata of checkpoints: the configuration, and hashes of the code and values that it does not contain."""
    saved = to_json(experiment) if experiment is not None else {"run": to_json(config)}
    parts = {"agent": agent} if experiment is None else {name: getattr(experiment, name, None) for name in _PARTS}
    parts = {name: part for name, part in parts.items() if part is not None}
    described = [name for name, part in parts.items() if dataclasses.is_dataclass(part) and name != "make_agent"]
    described += ["env"] if isinstance(getattr(experiment, "env", None), EnvConfig) else []
    code = fingerprint({**parts, "env": source}, described, saved)
    algorithm = find_algorithm(getattr(experiment, "agent", None))
    named = {"agent_name": agent.name} | ({"algorithm": algorithm} if algorithm else {})
    return {**named, "experiment": saved, "env_spec": spec_to_dict(spec), "code": code}


def make_callbacks(config: RunConfig, agent: AnyAgent, source: EnvSource, env: Any) -> list[Callback]:
    """Returns the callbacks that the configuration asks for; `env` is the configuration of `source`, if it has one.

    Raises:
        UserError: If the environment of evaluation cannot be made or be stepped by workers, or lacks the agents that count.
    """
    evaluated = evaluation_source(config, source, env)
    if config.eval.processes:
        in_workers(evaluated, config.eval.processes)  # raises before training, not after it
    validate_evaluation(config, evaluated)
    callbacks: list[Callback] = []
    if config.checkpoint.keep_every:
        callbacks.append(KeepModels())
    if config.eval.every:
        callbacks.append(EvaluateWhileTraining(agent, evaluated))
    return [*callbacks, *stop_rules(config), Control()]


def _make_trainable(setup: TrainingSetup, coordinator: Coordinator, placement: Placement, experiment: Any) -> Trainable:
    open_engine, network = placement.open_engine, getattr(experiment, "network", None)
    if coordinator.is_main:
        report_disk(setup)
    if isinstance(network, NetworkConfig) and (narrow := describe_narrow_policy(network, setup.spec)):
        setup.log(narrow)
    if warning := describe_other_environment(setup.config.dataset, setup.spec):
        setup.log(warning)
    choice = setup.config.eval
    limit = describe_limit(setup.spec, choice.max_episode_steps, "--eval.max-episode-steps")
    if limit and (choice.every or choice.final_episodes) and choice.env_kwargs == "{}":
        setup.log(limit)
    if setup.plan.is_offline:
        return OfflineTrainable(setup)
    if runs_on_device(setup.plan) and isinstance(setup.agent, Agent):
        return DeviceTrainable(setup, setup.agent, jax_env_of_source(setup.source))
    if isinstance(coordinator, ProcessCoordinator):
        return HostTrainable(setup, ProcessCollectors(setup, coordinator, open_engine))
    if open_engine is not None:
        return HostTrainable(setup, ClusterCollectors(setup, open_engine))
    return HostTrainable(setup, CollectorFactory(setup))
