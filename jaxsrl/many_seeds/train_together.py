"""Several seeds as ordinary runs, each in a thread of its own, whose learners are one program."""

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from agents.api import Agent, AnyAgent, Array, LearnerState
from envpool_bridge.envs.protocol import EnvSource
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import EnvSpec
from jaxsrl.checkpoints.run_directory import RunDirectory
from jaxsrl.checkpoints.store import Arrays
from jaxsrl.config.run_config import RunConfig
from jaxsrl.device_loop.loop import RowsLearner
from jaxsrl.envs.protocol import JaxEnv
from jaxsrl.learner.finite_watch import FiniteWatch
from jaxsrl.learner.learning_agent import learning_agent
from jaxsrl.machine.lifecycle import stop_on_signals
from jaxsrl.machine.program_cache import enable_program_cache
from jaxsrl.machine.resources import Resources
from jaxsrl.many_seeds.learner import SeedGroup
from jaxsrl.many_seeds.members import member_experiments, member_values, with_values
from jaxsrl.many_seeds.program import MemberStart
from jaxsrl.plan.load_plan import make_plan
from jaxsrl.plan.passes.apply import add_agent_fragments
from jaxsrl.plan.plan import Plan
from jaxsrl.run_plan import check_options, make_callbacks, make_identity, run_path
from jaxsrl.terminal.format import format_number
from jaxsrl.training.active_run import ActiveRun
from jaxsrl.training.callbacks import Callback
from jaxsrl.training.coordinator import Coordinator
from jaxsrl.training.device_trainable import DeviceTrainable
from jaxsrl.training.preflight import check_run, jax_env_of_source, runs_on_device
from jaxsrl.training.setup import RunReport, TrainingSetup
from jaxsrl.training.stop_rules import with_gradient_budget
from jaxsrl.training.train import TrainingLoop


def train_together(
    build_agent: Callable[[Any], AnyAgent],
    source: EnvSource,
    spec: EnvSpec,
    config: RunConfig,
    experiment: Any,
    quiet: bool = False,
) -> list[RunReport]:
    """Trains all seeds of a configuration in one program; each resumes if its run directory holds a checkpoint.

    Args:
        build_agent: returns the agent of an experiment for the spec. It is also called with traced scalars as those options of the
            experiment's agent that differ by seed.
        source: Source of environments, which are written in JAX.
        spec: Specification of the source.
        config: Configuration with the number of seeds; the plan is `device_only`.
        experiment: dataclass with the fields `agent` and `run`; saved as the config.json of each member with the member's values.
        quiet: no output on the terminal.

    Returns:
        The report of each seed.

    Raises:
        UserError: something cannot run as asked; raised before training starts.
    """
    agent = build_agent(experiment)
    config = with_gradient_budget(config, agent)
    members = member_experiments(dataclasses.replace(experiment, run=config))
    plan = add_agent_fragments(make_plan(config, agent=agent), agent, config.replay)
    _validate(config, plan)
    check_run(plan, agent, source, spec, Resources.detect())
    check_options(config, plan, agent, source, spec)

    def make_agent(values: dict[str, Array]) -> Agent:
        own = build_agent(with_values(experiment, values)) if values else agent
        return learning_agent(own, spec, config.num_envs, config.rollout_length)

    trained, env = make_agent({}), jax_env_of_source(source)
    enable_program_cache(Path(config.directory), jax.default_backend())
    group = SeedGroup(config.seeds, make_agent, env, config.rollout_length)
    show: list[Callback] = [] if quiet else [_Progress(config)]
    setups, loops = list[TrainingSetup](), list[TrainingLoop]()

    def stop(signal_name: str) -> None:
        for setup in setups:
            setup.lifecycle.stop_signal = signal_name
            setup.lifecycle.stop()

    with contextlib.ExitStack() as held:
        for member, (saved, values) in enumerate(zip(members, member_values(config), strict=True)):
            own: RunConfig = saved.run
            identity = make_identity(agent, saved, own, spec, source)
            directory = held.enter_context(RunDirectory(run_path(own, agent, spec, saved), saved))
            directory.validate(identity)
            setups.append(TrainingSetup(plan, trained, source, spec, own, directory, identity, quiet=True))
            callbacks = [_Leave(group, member), *make_callbacks(own, agent, source, saved.env), *show]
            trainable = MemberTrainable(setups[-1], trained, env, group, member, values)
            loops.append(TrainingLoop(setups[-1], trainable, Coordinator(), callbacks))
        with stop_on_signals(stop, config.shutdown_timeout_seconds):
            return _run_in_threads(group, loops)


def _validate(config: RunConfig, plan: Plan) -> None:
    """Raises for a plan and options that have no meaning for several seeds in one program."""
    if not runs_on_device(plan):
        raise UserError(
            f"run.seeds {config.seeds}: one program needs plan device_only, got {plan.name}: use --plan device_only, or train "
            f"the seeds as processes (jaxsrl train EXPERIMENT --run.seeds {config.seeds})"
        )
    problems = {
        "--learner.num-devices": config.learner.num_devices > 1,
        "--cluster.address": config.cluster.is_used,
        "--distributed.coordinator": config.distributed.is_on,
        "--metrics.prometheus-port": bool(config.metrics.prometheus_port),
        "--metrics.wandb": config.metrics.wandb,
    }
    for flag, is_set in problems.items():
        if is_set:
            raise UserError(
                f"run.seeds {config.seeds}: expected no {flag} with plan device_only, where the seeds share a process and all "
                f"its devices; remove it, or train the seeds one by one (--run.seed)"
            )


class MemberTrainable(DeviceTrainable):
    """One seed, whose learner is part of a group's program.

    Args:
        setup: Setup of the seed's run.
        agent: Agent of the group.
        env: Environment of the group.
        group: Group of the member.
        member: index in the group.
        values: Values of the agent's options that differ by member.
    """

    def __init__(
        self,
        setup: TrainingSetup,
        agent: Agent,
        env: JaxEnv,
        group: SeedGroup,
        member: int,
        values: Mapping[str, float],
    ) -> None:
        super().__init__(setup, agent, env)
        self._group, self._member, self._values = group, member, values

    def make_learner(self, state: LearnerState, saved: Arrays | None, watch: FiniteWatch) -> RowsLearner:
        return self._group.start(self._member, MemberStart(state, self.run_keys(), saved, self._values), watch)

    def validate_control(self, action: str) -> None:
        if action == "pause":  # the others would wait, each with a deadline
            raise UserError("the seeds of one program cannot pause alone: stop this seed; the same command resumes it")

    def close(self, failure: BaseException | None) -> None:
        self._group.leave(self._member)


class _Leave(Callback):
    """Lets the other members continue while one waits for its last evaluations."""

    def __init__(self, group: SeedGroup, member: int) -> None:
        self._group, self._member = group, member

    def on_stop(self, run: ActiveRun, reason: str) -> None:
        del run, reason
        self._group.leave(self._member)


class _Progress(Callback):
    """Prints a line about all members every few seconds."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._runs: dict[int, ActiveRun] = {}
        self._before = (time.monotonic(), 0)

    def on_start(self, run: ActiveRun) -> None:
        self._runs[run.config.seed] = run
        self._before = (time.monotonic(), self._env_steps())

    def on_update(self, run: ActiveRun) -> None:
        del run
        now, (then, steps) = time.monotonic(), self._before
        if now - then < self._config.metrics.interval_seconds:
            return
        self._before = (now, self._env_steps())
        means = [run.episodes().get("episode/return_mean") for run in self._runs.values()]
        returns = [mean for mean in means if mean is not None]
        shown = ""
        if returns:
            mean, low, high = map(format_number, (sum(returns) / len(returns), min(returns), max(returns)))
            shown = f", training return {mean} ({low} to {high})"
        speed = (self._before[1] - steps) / (now - then)
        with contextlib.suppress(OSError):  # the terminal may be gone
            print(  # noqa: T201
                f"{len(self._runs)} seeds: {self._before[1]:,} env steps, {speed:,.0f} env steps/s{shown}", flush=True
            )

    def _env_steps(self) -> int:
        return sum(run.env_steps for run in self._runs.values())


def _run_in_threads(group: SeedGroup, loops: Sequence[TrainingLoop]) -> list[RunReport]:
    """Runs the members' loops to their ends in threads, of which one runs at a time; raises the first error of any."""
    reports: dict[int, RunReport] = {}
    errors: list[BaseException] = []

    def run_member(member: int) -> None:
        try:
            group.enter(member)
            reports[member] = loops[member].run()
        except BaseException as error:  # noqa: BLE001  raised below
            errors.append(error)
            for loop in loops:
                loop.request_stop("another seed failed")
        finally:
            group.leave(member)

    members = range(len(loops))
    threads = [threading.Thread(target=run_member, args=(each,), name=f"seed {each}", daemon=True) for each in members]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()  # the watchdog of each run is its deadline
    if errors:
        raise errors[0]
    return [reports[member] for member in members]
