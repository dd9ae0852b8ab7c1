"""run(plan, agent, make_env): interprets a plan. Nothing in here knows an algorithm, nothing in an algorithm knows of this."""

import dataclasses
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from agents.api import Agent, LearnerState, Trajectory
from envpool_bridge.errors import UserError
from envpool_bridge.layout import PoolShape, make_layout
from envpool_bridge.specs import EnvSpec, spec_to_dict
from jaxsrl.checkpoint import CheckpointStore
from jaxsrl.config import RunConfig, to_json
from jaxsrl.dataflow.plan import Plan, plan_to_json
from jaxsrl.dataflow.resources import Resources
from jaxsrl.dataflow.validate import validate_memory, validate_plan
from jaxsrl.evaluate import MakeEnv, as_source
from jaxsrl.learner.loop import Learner, run_learner
from jaxsrl.learner.mesh import LearnerMesh
from jaxsrl.metrics.console import ConsoleSink
from jaxsrl.metrics.sinks import JsonlSink, MetricsSink, Sinks, TensorBoardSink
from jaxsrl.run_directory import PLAN, RunDirectory, write_json
from jaxsrl.runtime.interpret import devices_of, make_source, make_update
from jaxsrl.runtime.lifecycle import Lifecycle, stop_on_signals
from jaxsrl.runtime.progress import Progress, begin, from_arrays, to_arrays
from jaxsrl.runtime.reporter import Reporter
from jaxsrl.runtime.source import SourceConfig, TrajectorySource

_JOIN_SECONDS = 30.0


@dataclasses.dataclass(frozen=True)
class RunReport:
    """What a run came to.

    Attributes:
        directory: all that it left.
        state: final learner state.
        num_updates: updates done in all.
        env_steps: environment steps done in all.
        seconds: this process trained.
        metrics: episode means at the end.
        stopped_by: the signal that ended it early, or "".
    """

    directory: Path
    state: LearnerState
    num_updates: int
    env_steps: int
    seconds: float
    metrics: dict[str, float]
    stopped_by: str


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
    validate_memory(plan, make_layout(spec, plan.shape, agent.extras), resources)
    check_update(agent, spec, plan)
    saved = to_json(experiment) if experiment is not None else {"run": to_json(config)}
    identity = {"agent_name": agent.name, "experiment": saved, "env_spec": spec_to_dict(spec)}
    with RunDirectory(Path(config.directory) / run_name(config, agent, spec)) as directory:
        directory.claim(identity)
        write_json(directory.path / PLAN, plan_to_json(plan))
        return _Run(plan, agent, source, spec, config, directory, quiet).train(identity)


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


class _Run:
    """One call of `run`, with the run directory held."""

    def __init__(
        self,
        plan: Plan,
        agent: Agent,
        source: Any,
        spec: EnvSpec,
        config: RunConfig,
        directory: RunDirectory,
        quiet: bool,
    ) -> None:
        self._plan, self._agent, self._source, self._spec = plan, agent, source, spec
        self._config, self._directory, self._quiet = config, directory, quiet
        self._checkpoints = CheckpointStore(directory.checkpoints, config.keep_checkpoints)
        self._lifecycle = Lifecycle()
        # Independent streams for parameters, actions and updates.
        self._init_key, self._act_key, self._update_key = jax.random.split(jax.random.key(config.seed), 3)
        self._saved_update = -1

    def train(self, identity: dict[str, Any]) -> RunReport:
        progress = self._resume_or_begin()
        self._identity = identity
        first = int(progress.state.num_updates)
        if first >= self._config.num_updates:
            self._directory.log("already complete")
            return self._report(progress.state, progress, first, 0.0)
        started = time.perf_counter()
        source = self._make_source(first)
        sinks = Sinks(self._make_sinks())
        try:
            with stop_on_signals(self._on_signal):
                learner = self._learn(source, sinks, progress)
        finally:
            try:
                self._lifecycle.join(_JOIN_SECONDS)
            finally:
                source.close()
                sinks.close()
        return self._report(learner.state, progress, learner.num_updates, time.perf_counter() - started)

    def _learn(self, source: TrajectorySource, sinks: Sinks, progress: Progress) -> Learner:
        config, plan = self._config, self._plan
        first = int(progress.state.num_updates)
        if progress.behind is not None:
            source.publish(first - 1, progress.behind)
        mesh = LearnerMesh(devices_of(plan.learner))
        update = make_update(self._agent, plan, mesh, self._update_key)
        learner = Learner(mesh, source, progress.state, update)
        if progress.behind is not None:
            learner.behind = progress.behind
        expected = progress.log.last_observation
        source.start(progress.reset)
        reporter = Reporter(sinks, learner, source, config.env_steps_per_update, self._spec.action_repeat)
        reporter.checkpoint_update = first

        def after_update() -> None:
            every = config.checkpoint_every_updates
            if every and learner.num_updates % every == 0:
                self._save(learner, progress)
                reporter.checkpoint_update = learner.num_updates
            if reporter.due(config.log_every_seconds):
                reporter.write(progress.episodes)

        if expected is not None:
            self._check_replay(source, expected)
        run_learner(
            learner, config.num_updates, progress.episodes, progress.log, self._lifecycle.should_stop, after_update
        )
        self._lifecycle.raise_error()
        if learner.num_updates != self._saved_update and learner.num_updates > first:
            self._save(learner, progress)
            reporter.checkpoint_update = learner.num_updates
        reporter.write(progress.episodes)
        return learner

    def _resume_or_begin(self) -> Progress:
        found = self._checkpoints.restore_newest()
        if found is None:
            self._directory.log(f"begins: {self._config.num_updates} updates")
            return begin(self._agent, self._init_key, self._config.num_envs)
        step, arrays, _, problems = found
        for problem in problems:
            self._say(f"damaged checkpoint skipped: {problem}")
        self._say(f"resumes {self._directory.path} at update {step} of {self._config.num_updates}")
        self._saved_update = step
        return from_arrays(self._agent, self._init_key, arrays, self._config.num_envs, self._config.rollout_length)

    def _make_source(self, first: int) -> TrajectorySource:
        setup = SourceConfig(self._source, self._spec, self._plan, self._agent, self._config.seed, first, self._act_key)
        return make_source(setup, self._lifecycle)

    def _make_sinks(self) -> list[MetricsSink]:
        path = self._directory.path
        sinks: list[MetricsSink] = [JsonlSink(path / "metrics.jsonl"), TensorBoardSink(path / "tensorboard")]
        if not self._quiet:
            sinks.append(ConsoleSink(self._config.env_steps, self._spec.action_repeat, str(path)))
        return sinks

    def _check_replay(self, source: TrajectorySource, expected: np.ndarray) -> None:
        """Warns where replayed environments did not get to where they were; the run goes on from where they are."""
        observed = source.first_observation(self._lifecycle.should_stop)
        if observed is None:
            return
        same = [np.array_equal(*pair) for pair in zip(observed, expected, strict=True)]
        if not all(same):
            rows = [row for row, equal in enumerate(same) if not equal]
            self._say(
                f"{len(rows)} of {len(same)} rows (first: {rows[:5]}) did not come back to the state they were saved in: the "
                f"environment is not a function of its seed and actions, so this run is not the uninterrupted one to the bit"
            )

    def _save(self, learner: Learner, progress: Progress) -> None:
        behind = learner.behind if self._plan.max_policy_lag == 1 else None
        arrays = to_arrays(learner.state, behind, progress.episodes, progress.log)
        metadata = {**self._identity, "env_steps": learner.num_updates * self._config.env_steps_per_update}
        self._checkpoints.save(learner.num_updates, arrays, metadata)
        self._saved_update = learner.num_updates
        self._directory.log(f"checkpoint at update {learner.num_updates}")

    def _on_signal(self, name: str) -> None:
        self._lifecycle.stop_signal = name
        self._lifecycle.stop()

    def _report(self, state: LearnerState, progress: Progress, num_updates: int, seconds: float) -> RunReport:
        env_steps = num_updates * self._config.env_steps_per_update
        stopped = self._lifecycle.stop_signal
        how = f"stopped by {stopped}" if stopped else "complete"
        self._directory.log(f"{how} at update {num_updates}, {env_steps} env steps, {seconds:.1f} s")
        return RunReport(
            self._directory.path, state, num_updates, env_steps, seconds, progress.episodes.metrics(), stopped
        )

    def _say(self, line: str) -> None:
        self._directory.log(line)
        if not self._quiet:
            print(line, flush=True)  # noqa: T201
