"""Experiments as values: what is trained in which environment, and the command line of an experiment's file."""

import contextlib
import dataclasses
import shlex
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

from agents.api import AnyAgent
from agents.catalog import AGENTS, find_algorithm, find_make_agent
from agents.networks.config import NetworkConfig
from agents.transforms.level_replay import with_level_replay
from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.envs.function_source import AnyEnv
from envpool_bridge.envs.protocol import EnvSource
from envpool_bridge.errors import UserError
from envpool_bridge.limits import count_cores
from envpool_bridge.spec.specs import EnvSpec
from jaxsrl import run_plan
from jaxsrl.checkpoints.run_directory import LOG
from jaxsrl.cluster.learners.processes import join
from jaxsrl.cluster.reported_end import reported_end
from jaxsrl.config.command_line import parse_command_line
from jaxsrl.config.files import ConfigFile, read_config_file, with_file_options
from jaxsrl.config.json_flags import merge_json_flags
from jaxsrl.config.run_config import RunConfig
from jaxsrl.config.run_name import with_name_again, with_run_name
from jaxsrl.config.serialization import from_json, to_json
from jaxsrl.config.without_effect import validate_effect
from jaxsrl.envs.registry import made_from, make_env
from jaxsrl.evaluation.evaluate import EvaluationReport
from jaxsrl.evaluation.final_evaluation import describe_repairs, evaluate_final, format_returns
from jaxsrl.evaluation.load_agent import load_agent
from jaxsrl.evaluation.next_commands import format_end
from jaxsrl.evaluation.while_training import evaluation_source
from jaxsrl.machine.cpu_dispatch import use_synchronous_cpu_dispatch
from jaxsrl.machine.lifecycle import exit_now, exit_on_user_error, exit_status, stop_on_signals
from jaxsrl.machine.provenance import experiment_command, read_command
from jaxsrl.machine.split_cpu import set_num_cpu_devices
from jaxsrl.many_seeds.members import member_configs, member_experiments
from jaxsrl.many_seeds.processes import this_command, train_in_processes
from jaxsrl.many_seeds.train_together import train_together
from jaxsrl.plan.import_file import import_file
from jaxsrl.plan.load_plan import make_plan
from jaxsrl.population.imitation import ImitationConfig, imitating_agent, taught_agent
from jaxsrl.population.policies import PoliciesConfig, PolicyDefaults, make_multi_policy_agent, make_own_agents
from jaxsrl.training.callbacks import Callback


@dataclasses.dataclass(frozen=True)
class TrainReport(run_plan.RunReport):
    """Result of a run and of its evaluation.

    Attributes:
        evaluation: Evaluation of greedy episodes with the final parameters; None if none were played.
    """

    evaluation: EvaluationReport | None = None


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A training run as data: `train`, `jaxsrl plan` and the checkpoints read the same value.

    Attributes:
        env: configuration of the environment, or a function that makes one.
        agent: configuration of an algorithm, such as `PPOConfig`; `run` sets its sizes and `total_updates`.
        network: configuration of the agent's network, or a network that its make function takes.
        run: sizes, budget, plan and directory.
        policies: Assignment of policies to agents of a multi-agent environment, and settings of each.
        imitation: Imitation of an expert, in place of the environment's rewards.
        make_agent: called with (agent, spec, network); None for the algorithm whose configuration `agent` is.
    """

    env: EnvConfig | AnyEnv
    agent: Any
    network: Any = dataclasses.field(default_factory=NetworkConfig)
    run: RunConfig = dataclasses.field(default_factory=RunConfig)
    policies: PoliciesConfig = dataclasses.field(default_factory=PoliciesConfig)
    imitation: ImitationConfig = dataclasses.field(default_factory=ImitationConfig)
    make_agent: Callable[..., AnyAgent] | None = None

    def build(self) -> tuple[AnyAgent, EnvSource, EnvSpec]:
        """Returns the agent, the source of environments and its spec. Starts no process.

        Raises:
            UserError: If the configurations do not fit each other, or name something unknown.
        """
        source = make_env(self.env)
        spec = source.spec()
        return self._build_agent(spec), source, spec

    def _build_agent(self, spec: EnvSpec) -> AnyAgent:
        make = self.make_agent or find_make_agent(self.agent)
        defaults = PolicyDefaults(self.agent, self.network, make, self.run, spec.rows_per_env)
        own_agents = make_own_agents(self.policies, defaults)
        agent = make_multi_policy_agent(spec, self.policies, defaults.make_agent, own_agents, self.run.num_envs)
        agent = taught_agent(agent, self.imitation, spec, self.network, self.run.env_steps_per_update)
        if self.imitation.demonstrations and self.policies.self_play.slots:
            raise UserError(
                f"imitation.demonstrations replace the rewards of one policy: expected --policies.self-play.slots 0 with it, got "
                f"{self.policies.self_play.slots}"
            )
        load_policy = partial(load_agent, env=self.env)  # an expert's, for the environments of this run
        agent = imitating_agent(agent, self.imitation, spec, load_policy, self.run.num_updates)
        return with_level_replay(agent, spec, self.run.level_replay, self.run.num_envs)

    def train(self, *, quiet: bool = False, callbacks: Sequence[Callback] = ()) -> TrainReport:
        """Trains, or resumes from the run directory's newest checkpoint, and evaluates; see `train`."""
        _split_host(self.run)
        agent, source, spec = self.build()
        return train(agent, source, self.run, experiment=self, spec=spec, quiet=quiet, callbacks=callbacks)

    def train_seeds(self, *, quiet: bool = False) -> list[TrainReport]:
        """Trains all seeds of `run.seeds` in one program, and evaluates each; the environments are written in JAX.

        A stop signal saves all seeds, and the same call resumes them. Stopped runs are not evaluated.

        Raises:
            UserError: something cannot run as asked; raised before training starts.
        """
        _split_host(self.run, communicate=False)
        agent, source, spec = self.build()
        show = (lambda line: None) if quiet else print
        reports: list[TrainReport] = []
        done_runs = train_together(lambda own: own._build_agent(spec), source, spec, self.run, self, quiet)
        for done, config in zip(done_runs, member_configs(self.run), strict=True):
            report = TrainReport(**vars(done))
            if done.stopped_by:
                show(f"{done.directory}: stopped by {done.stopped_by} at {done.env_steps:,} env steps; it resumes")
            elif config.eval.final_episodes:
                evaluated = evaluation_source(config, source, self.env)
                evaluation = evaluate_final(done, agent, config, evaluated, show)
                report = dataclasses.replace(report, evaluation=evaluation)
                show(f"{done.directory}: {format_returns(evaluation)}")
            reports.append(report)
        return reports


def train(
    agent: AnyAgent,
    env: str | EnvConfig | AnyEnv,
    config: RunConfig,
    *,
    experiment: Any = None,
    spec: EnvSpec | None = None,
    quiet: bool = False,
    callbacks: Sequence[Callback] = (),
) -> TrainReport:
    """Trains `agent` by the plan that `config` names, plays `config.eval.final_episodes` greedy episodes, reports both.

    A run directory that holds a checkpoint is resumed. A stopped run is not evaluated.

    Args:
        agent: Agent from `make_<algorithm>`.
        env: id or configuration of an environment, or a function that makes one.
        config: Configuration of the run.
        experiment: the value saved with every checkpoint; None for what the agent and the environment were made from.
        spec: Specification of the environment, if already known.
        quiet: no output on the terminal.
        callbacks: called while the run trains; see `jaxsrl.Callback`.

    Raises:
        UserError: something cannot run as asked; raised before any process starts.
        FailedLearnerError, LostLearnerError: If another learner process failed or was lost.
        EnvPoolError: If an environment failed.
    """
    show: Callable[[str], None] = (lambda line: None) if quiet else print
    _split_host(config)
    source = make_env(env)
    experiment = bound_experiment(agent, made_from(source), config) if experiment is None else experiment
    options: dict[str, Any] = {"experiment": experiment, "spec": spec, "quiet": quiet, "callbacks": callbacks}
    done = run_plan.run(make_plan(config, agent=agent), agent, source, config, **options)
    report = TrainReport(**vars(done))
    if not done.wrote_directory:
        return report
    if done.repaired_outputs:
        show(describe_repairs(done.repaired_outputs))
    if done.stopped_by:
        show(
            f"stopped by {done.stopped_by} at {done.env_steps:,} {config.step_unit}; the same command resumes: {read_command()}"
        )
        return report
    if done.stop_reason:
        show(f"stopped at {done.env_steps:,} {config.step_unit}: {done.stop_reason}")
    if done.seconds:
        trained, unit = done.env_steps - done.env_steps_before, config.step_unit
        after = f" after {done.env_steps_before:,} in earlier processes" if done.env_steps_before else ""
        show(f"trained {trained:,} {unit} in {done.seconds:.1f} s ({trained / done.seconds:,.0f} {unit}/s){after}")
    if config.eval.final_episodes:
        evaluated = evaluation_source(config, source, getattr(experiment, "env", env))
        evaluation = evaluate_final(done, agent, config, evaluated, show)
        report = dataclasses.replace(report, evaluation=evaluation)
        show(format_returns(evaluation))
    show(format_end(done.directory, experiment, source.spec(), config.metrics.tensorboard))
    return report


def bound_experiment(agent: AnyAgent, env: EnvConfig | AnyEnv, run: RunConfig) -> Experiment:
    """Returns the experiment of an agent that was made in Python; its `make_agent` contains an agent with replaced parts."""
    binding = agent.binding
    config, network = (None, None) if binding is None else (binding.config, binding.network)
    if binding is None or not binding.describes(agent):
        return Experiment(env, config, network, run, make_agent=partial(_composed_agent, agent))
    is_listed = find_algorithm(config) is not None and find_make_agent(config) is binding.make
    return Experiment(env, config, network, run, make_agent=None if is_listed else binding.make)


def _composed_agent(agent: AnyAgent, *arguments: Any) -> AnyAgent:
    del arguments
    return agent


def _split_host(config: RunConfig, communicate: bool = True) -> None:
    """Splits the host into the devices of a run; processes of a run split theirs when they join.

    Raises:
        UserError: jax already has another number of devices.
    """
    if config.machine.num_cpu_devices and not config.distributed.is_on:
        set_num_cpu_devices(config.machine.num_cpu_devices, communicate)


MakeExperiment = Callable[..., Experiment]
"""Function of an EnvConfig, which has a default, that returns the experiment with settings for that environment."""


def load_experiment(path: Path, flags: Sequence[str] = ()) -> Experiment:
    """Returns the value `EXPERIMENT` of a Python file, or the result of its function `make_experiment`, as the flags change it.

    Raises:
        UserError: If there is no such file, or neither in it.
        SystemExit: If the flags cannot be parsed, or ask for --help.
    """
    module = import_file(path, "experiment")
    experiment = getattr(module, "EXPERIMENT", None)
    make_experiment, program = getattr(module, "make_experiment", None), experiment_command(str(path))
    if experiment is None and callable(make_experiment):
        return parse_flags(cast("MakeExperiment", make_experiment), flags, module.__doc__, program)
    if not isinstance(experiment, Experiment):
        raise UserError(
            f"{path} has no EXPERIMENT: expected EXPERIMENT = Experiment(...), as in the files of experiments/"
        )
    return parse_flags(experiment, flags, module.__doc__, program)


def parse_flags(
    experiment: Experiment | MakeExperiment | None,
    flags: Sequence[str] | None = None,
    description: str | None = None,
    program: str | None = None,
) -> Experiment:
    """Returns the experiment with the fields changed that flags such as `--run.seed 1` and `--env.kwargs.frame_skip 4` name.

    `--config FILE` changes it before the flags do. The experiment and the options that differ from its own name the run directory.
    If a run wrote the file, its name with the suffix `_again` takes the place of the experiment's.

    Args:
        experiment: Experiment whose values are the flags' defaults. A function is called with the environment that the flags
            name. None for the experiment of the run whose config.json the flags name.
        flags: the command line's if None.
        description: Description for --help.
        program: command whose --help messages name, with the experiment; None for the program that runs, whose runs get no name.

    Raises:
        UserError: If a value is rejected, a flag has no effect, a flag of a JSON object's entry has no value, or a file is not
            valid.
        SystemExit: If the flags cannot be parsed, or ask for --help.
    """
    file, flags = _take_config_file(sys.argv[1:] if flags is None else flags)
    options: dict[str, Any] = {} if file is None else file.options
    base = [] if program is None else [Path(shlex.split(program)[-1]).stem]
    if experiment is None:
        value = plain = _restore_experiment(file)
    elif isinstance(experiment, Experiment):
        value = plain = experiment
    else:
        default = experiment()
        own_env = cast("EnvConfig", default.env)
        if file is not None and "env" in options:
            default = with_file_options(default, {"env": options["env"]}, str(file.path))
        value = experiment(env := _parse_env(default, flags, program))
        plain, base = dataclasses.replace(value, env=dataclasses.replace(own_env, id=env.id)), [*base, env.id]
        options = {name: option for name, option in options.items() if name != "env"}
    if file is not None:
        value = with_file_options(value, options, str(file.path))
    flags = merge_json_flags(flags, value)
    reads = "--config FILE reads options from a run's config.json, or a .yaml or .toml file."
    description = f"{description or ''}\n\n{reads}"
    parsed = parse_command_line(type(value), default=value, args=flags, description=description, prog=program)
    validate_effect(value, parsed)
    if parsed.run.name:
        return parsed
    if file is not None and file.run_directory is not None:
        return with_name_again(parsed, value, file)
    return with_run_name(parsed, plain, base) if base else parsed


def _take_config_file(flags: Sequence[str]) -> tuple[ConfigFile | None, list[str]]:
    """Returns the file of `--config FILE`, if the flags have it, and the other flags."""
    others, path = [], None
    remaining = iter(flags)
    for flag in remaining:
        name, has_value, value = flag.partition("=")
        if name != "--config":
            others.append(flag)
            continue
        if path is not None:
            raise UserError("expected one --config FILE, got several")
        path = value if has_value else next(remaining, "")
        if not path:
            raise UserError("expected a file after --config: a run's config.json, or a .yaml or .toml file")
    return (None if path is None else read_config_file(Path(path))), others


def _restore_experiment(file: ConfigFile | None) -> Experiment:
    """Returns the experiment of the run that wrote a file.

    Raises:
        UserError: If no run wrote it, or parts of its experiment are functions.
    """
    if file is None or not file.agent_name:
        raise UserError("expected an experiment, or --config RUN/config.json of a run, which contains its experiment")
    saved = file.options
    is_whole = {"env", "agent", "network", "run"} <= set(saved) and isinstance(saved["env"], dict)
    if file.agent_name not in AGENTS or not is_whole or saved.get("make_agent"):
        raise UserError(
            f"{file.path}: the experiment has parts made in code, which a file does not contain: name the experiment, "
            f"jaxsrl train EXPERIMENT --config {file.path}"
        )
    return Experiment(
        env=from_json(EnvConfig, saved["env"]),
        agent=from_json(AGENTS[file.agent_name].config, saved["agent"]),
        network=from_json(NetworkConfig, saved["network"]),
        run=from_json(RunConfig, saved["run"]),
        policies=from_json(PoliciesConfig, saved.get("policies", {})),
    )


@dataclasses.dataclass(frozen=True)
class _EnvFlags:
    env: EnvConfig


def _parse_env(default: Experiment, flags: Sequence[str], program: str | None) -> EnvConfig:
    """Returns the environment of an experiment as the flags change it; other flags are skipped."""
    assert isinstance(default.env, EnvConfig)
    flags = [flag for flag in merge_json_flags(flags, default) if flag not in ("-h", "--help")]
    options = {"default": _EnvFlags(default.env), "args": flags, "return_unknown_args": True, "prog": program}
    return parse_command_line(_EnvFlags, **options)[0].env


@exit_on_user_error
def cli(experiment: Experiment | MakeExperiment | None, flags: Sequence[str] | None = None) -> None:
    """Trains an experiment as flags change it: the main program of an experiment's file.

    Training saves before it stops. A stop signal before or after training ends the process at once, without `finally` blocks and
    handlers of atexit. Raising SystemExit instead crashes the process (status 139) if the signal interrupts a compilation.

    Args:
        experiment: Experiment whose values are the flags' defaults. A function is called with the environment that the flags
            name. None for that of the configuration file.
        flags: the command line's if None.

    Raises:
        SystemExit: If a signal stopped the run; status 128 + its number, as a shell reports it, or 75 (try again) for SIGUSR1.
            Or a UserError, status 2; lost learner processes or lost replay, status 75. 1 for another one that failed.
    """
    program = "jaxsrl train --config FILE" if experiment is None else experiment_command(sys.argv[0])
    parsed = parse_flags(experiment, flags, sys.modules["__main__"].__doc__, program)
    if parsed.run.seeds > 1:
        sys.exit(_train_seeds(parsed))
    log = Path(parsed.run.directory, parsed.run.name, LOG)
    is_program = flags is None  # not a call in a process with threads, which must not fork
    with reported_end(log) if is_program and parsed.run.cluster.is_used else contextlib.nullcontext():
        use_synchronous_cpu_dispatch()
        join(parsed.run.distributed, parsed.run.machine.num_cpu_devices, to_json(parsed))
        with stop_on_signals(exit_now):
            stopped_by = parsed.train().stopped_by
            if stopped_by:
                sys.exit(exit_status(stopped_by))


def _train_seeds(experiment: Experiment) -> int:
    """Trains all seeds of an experiment; returns the exit status."""
    run = experiment.run
    member_experiments(experiment)  # raises UserError for invalid values
    if run.plan != "device_only":
        return train_in_processes(run, this_command(), print)
    set_num_cpu_devices(run.machine.num_cpu_devices or min(run.seeds, count_cores()), communicate=False)
    with stop_on_signals(exit_now):
        stopped = [report.stopped_by for report in experiment.train_seeds() if report.stopped_by]
        return exit_status(stopped[0]) if stopped else 0
