"""RunConfig: sizes, budget, placement and operation of a run, apart from the environment and the algorithm."""

import dataclasses
from collections.abc import Iterable
from typing import Annotated, Any, Literal

import tyro

from agents.ops import validate
from agents.settings import validate_numbers
from agents.transforms.level_replay_config import LevelReplayConfig
from envpool_bridge.errors import UserError
from jaxsrl.config.curriculum import CurriculumConfig
from jaxsrl.config.parts import (
    CheckpointConfig,
    ClusterConfig,
    DatasetConfig,
    DistributedConfig,
    EvalConfig,
    InferenceConfig,
    LearnerConfig,
    MachineConfig,
    MetricsConfig,
    PoolConfig,
    ReplayMemoryConfig,
    validate_at_least,
)

_LONGEST_WAIT_SECONDS = 1e9  # locks and conditions accept no longer timeouts
OFFLINE_STEPS = 100_000
"""Gradient steps of plan `offline`, unless `gradient_steps` is given."""
_SAFETY = ("max_nonfinite_updates", "on_nonfinite")


def _paths(part: str, config: type[Any], leave: Iterable[str] = ()) -> frozenset[str]:
    return frozenset(f"run.{part}.{field.name}" for field in dataclasses.fields(config) if field.name not in leave)


# Placement of fragments, and staleness of the policy that acts or prepares samples. The results of a run depend on these options.
_PLACEMENT = (
    frozenset({"run.plan", "run.max_policy_lag"})
    | _paths("pool", PoolConfig, leave=("supervision",))
    | _paths("inference", InferenceConfig)
    | _paths("learner", LearnerConfig, leave=_SAFETY)
    | _paths("replay", ReplayMemoryConfig, leave=("memory",))
)

# Budget, saving, supervision and reports. The steps of a run do not depend on these options. A schedule over the whole run, such
# as a linear learning rate, stretches with `total_env_steps`: the run then differs from a longer one from the start.
OPERATION = (
    frozenset({"run.total_env_steps", "run.directory", "run.shutdown_timeout_seconds", "run.stall_timeout_seconds"})
    | {
        "run.gradient_steps",
        "run.record",
        "run.replay.memory",
        "run.max_hours",
        "run.target_return",
        "run.plateau_env_steps",
        "run.seeds",
        "run.seeds_at_once",
        "run.seed_learning_rates",
        "run.seed_entropy_coefs",
    }
    | {f"run.learner.{name}" for name in _SAFETY}
    | {f"run.pool.supervision.{field.name}" for field in dataclasses.fields(PoolConfig().supervision)}
    | _paths("checkpoint", CheckpointConfig)
    | _paths("cluster", ClusterConfig)
    | _paths("machine", MachineConfig)
    | _paths("eval", EvalConfig)
    | _paths("metrics", MetricsConfig)
    | _paths("distributed", DistributedConfig)
)

# Options that may differ when a run directory is resumed. `num_envs` and `rollout_length` are the size of an update, and may not.
MAY_CHANGE = _PLACEMENT | OPERATION | {"run.name"}
_WITHOUT_PREFIX = tyro.conf.arg(prefix_name=False)  # flags of a part: --pool.num-workers, not --run.pool.num-workers


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """Sizes, budget, directory and parts of a run.

    Attributes:
        name: name of the run directory; "" derives it from the experiment, the options that differ from its own, and the seed.
        directory: parent directory of runs.
        seed: Seed of everything random.
        seeds: number of runs, with the seeds `seed`, `seed` + 1, ..., each in a run directory of its own. They are one program
            with plan `device_only`, and otherwise processes.
        seeds_at_once: Number of these processes that run at the same time, each on cores of its own.
        seed_learning_rates: values of the agent's `learning_rate`, one for each of `seeds`; empty for the same in all.
        seed_entropy_coefs: values of the agent's `entropy_coef`, one for each of `seeds`; empty for the same in all.
        plan: placement of environments, inference and learning: a name in `jaxsrl.plan.policies.PLANS`, or your own function
            as "path/to/file.py:function" or "module:function".
        total_env_steps: environment steps of the whole run.
        gradient_steps: budget of gradient steps of an agent with replay: the run ends with the first update that reaches it, or
            with its env steps. With plan `offline`, which takes no env steps, None is 100,000, and intervals and records count
            gradient steps.
        num_envs: B, environments stepped in total, over all learner processes.
        rollout_length: T, steps of every environment for each update.
        max_policy_lag: updates by which the acting policy may be behind the learner. 0 is synchronous; 1 overlaps collecting
            with learning (both deterministic); n >= 2 is asynchronous. None is 1, or 0 for agents without an importance ratio.
        shutdown_timeout_seconds: time after SIGINT, SIGTERM, SIGHUP or SIGUSR1 until a run that has not stopped exits anyway;
            0 waits without limit.
        stall_timeout_seconds: longest time without any progress: no step, action, gradient step or update. Then the run ends
            with an error that names what waits for what. It must exceed the longest compilation, update and checkpoint.
        init_from: run, "RUN@TAG", or directory of a checkpoint or model, whose learner state a new run starts with.
        init_only: patterns of paths of the arrays to take, such as "torso/*"; all if empty.
        init_optimizer: take the state of the optimizer too.
        record: directory of a dataset that receives all steps of the run; "" for none. A resumed run continues it.
        max_hours: wall-clock hours of one process after which the run stops; 0 for no limit. The same command continues it.
        target_return: mean return at which the run stops: of an evaluation with `--eval.every`, otherwise of the last 100 training
            episodes; None for no target. Sampled evaluations count with `--eval.mode sample` alone.
        plateau_env_steps: env steps without a better evaluation after which the run stops, of the mode that counts for
            `target_return`; 0 for no limit. It needs `--eval.every`.
        pool: worker processes that step the environments.
        inference: batched inference.
        learner: devices and replicas that learn.
        replay: storage of replayed experience.
        dataset: recorded steps to learn from.
        checkpoint: checkpoints of the run.
        cluster: other machines.
        distributed: learner processes on several hosts.
        machine: settings of this machine.
        metrics: destinations of the run's records.
        eval: evaluation while the run trains, and after it.
        curriculum: stages of the environments that evaluations end.
        level_replay: choice among the levels of the environments.
    """

    name: str = ""
    directory: str = "runs"
    seed: int = 0
    seeds: int = 1
    seeds_at_once: int = 1
    seed_learning_rates: tuple[float, ...] = ()
    seed_entropy_coefs: tuple[float, ...] = ()
    plan: Annotated[str, tyro.conf.arg(aliases=["--plan"])] = "single_learner_fine"
    total_env_steps: int = 500_000
    gradient_steps: int | None = None
    num_envs: int = 128
    rollout_length: int = 32
    max_policy_lag: int | None = None
    shutdown_timeout_seconds: float = 0.0
    stall_timeout_seconds: float = 1800.0
    init_from: str = ""
    init_only: tuple[str, ...] = ()
    init_optimizer: bool = False
    record: str = ""
    max_hours: float = 0.0
    target_return: float | None = None
    plateau_env_steps: int = 0
    pool: Annotated[PoolConfig, _WITHOUT_PREFIX] = dataclasses.field(default_factory=PoolConfig)
    inference: Annotated[InferenceConfig, _WITHOUT_PREFIX] = dataclasses.field(default_factory=InferenceConfig)
    learner: Annotated[LearnerConfig, _WITHOUT_PREFIX] = dataclasses.field(default_factory=LearnerConfig)
    replay: Annotated[ReplayMemoryConfig, _WITHOUT_PREFIX] = dataclasses.field(default_factory=ReplayMemoryConfig)
    dataset: Annotated[DatasetConfig, _WITHOUT_PREFIX] = dataclasses.field(default_factory=DatasetConfig)
    checkpoint: Annotated[CheckpointConfig, _WITHOUT_PREFIX] = dataclasses.field(default_factory=CheckpointConfig)
    cluster: Annotated[ClusterConfig, _WITHOUT_PREFIX] = dataclasses.field(default_factory=ClusterConfig)
    distributed: Annotated[DistributedConfig, _WITHOUT_PREFIX] = dataclasses.field(default_factory=DistributedConfig)
    machine: Annotated[MachineConfig, _WITHOUT_PREFIX] = dataclasses.field(default_factory=MachineConfig)
    metrics: Annotated[MetricsConfig, _WITHOUT_PREFIX] = dataclasses.field(default_factory=MetricsConfig)
    eval: Annotated[EvalConfig, _WITHOUT_PREFIX] = dataclasses.field(default_factory=EvalConfig)
    curriculum: Annotated[CurriculumConfig, _WITHOUT_PREFIX] = dataclasses.field(default_factory=CurriculumConfig)
    level_replay: Annotated[LevelReplayConfig, _WITHOUT_PREFIX] = dataclasses.field(default_factory=LevelReplayConfig)

    def __post_init__(self) -> None:
        _validate_choices(self)
        validate_numbers(self, "run.", integer_bits=63)
        validate_at_least(
            1, "run", self, "total_env_steps", "gradient_steps", "num_envs", "rollout_length", "seeds", "seeds_at_once"
        )
        validate_at_least(
            0, "run", self, "seed", "max_policy_lag", "shutdown_timeout_seconds", "max_hours", "plateau_env_steps"
        )
        if self.seed + self.seeds > 2**32:
            raise UserError(f"run.seed must be smaller than 2**32, with further seeds too: got {self.seed}")
        for name in ("seed_learning_rates", "seed_entropy_coefs"):
            given = len(getattr(self, name))
            if given and (given != self.seeds or given == 1):
                raise UserError(
                    f"run.{name}: expected one value for each of several run.seeds, got {given} with {self.seeds} of them; use "
                    f"--run.seeds {max(given, 2)}, or the agent's option for one seed"
                )
        if (self.init_only or self.init_optimizer) and not self.init_from:
            raise UserError(
                "run.init_only and init_optimizer choose what to take: use --run.init-from RUN[@TAG] with them"
            )
        if self.plateau_env_steps and not self.eval.every:
            raise UserError("run.plateau_env_steps compares evaluations: use --eval.every 100000 with it")
        if self.curriculum.is_on and not self.eval.every:
            raise UserError("curriculum.returns are returns of evaluations: use --eval.every 20000 with it")
        if not 0.0 < self.stall_timeout_seconds <= _LONGEST_WAIT_SECONDS:
            raise UserError(
                f"run.stall_timeout_seconds must be positive, and at most {_LONGEST_WAIT_SECONDS:g}: got "
                f"{self.stall_timeout_seconds}"
            )
        _validate_roll_back(self.learner, self.checkpoint)
        if self.replay.is_remote and not self.cluster.is_used:
            raise UserError(
                "replay.memory is 'cluster', but the run uses no cluster: use --cluster.address local or auto with it, or "
                "--replay.memory host on one machine"
            )
        if "/" in self.name or self.name in {".", ".."}:
            raise UserError(
                f"run.name must be a plain directory name: got {self.name!r}; use run.directory for the parent directory"
            )

    @property
    def is_offline(self) -> bool:
        """Returns whether the run learns from a dataset alone."""
        return self.plan == "offline"

    @property
    def policy_lag(self) -> int:
        """Returns `max_policy_lag`, or 1 if it is None; `make_plan` replaces None by what the agent allows."""
        return 1 if self.max_policy_lag is None else self.max_policy_lag

    @property
    def step_unit(self) -> Literal["env steps", "gradient steps"]:
        """Returns the unit of the run's budget, intervals and records."""
        return "gradient steps" if self.is_offline else "env steps"

    @property
    def env_steps_per_update(self) -> int:
        """Returns the number of environment steps that one update learns from; with plan `offline`, its gradient steps."""
        return self.dataset.gradient_steps_per_update if self.is_offline else self.num_envs * self.rollout_length

    def next_stop(self, num_updates: int) -> int:
        """Returns the next update after which a version is evaluated or kept, or the run ends: dispatches end there."""
        done, stops = num_updates * self.env_steps_per_update, [self.num_updates]
        for every in (self.eval.every, self.checkpoint.keep_every):
            if every:
                stops.append(-(-(done // every + 1) * every // self.env_steps_per_update))
        return min(stops)

    def reaches_multiple(self, num_updates: int, env_steps: int) -> bool:
        """Returns whether an update is the first at or past a multiple of `env_steps`."""
        done = num_updates * self.env_steps_per_update
        return done // env_steps > (done - self.env_steps_per_update) // env_steps

    @property
    def num_updates(self) -> int:
        """Returns the number of updates that the budget takes, rounded up; `with_gradient_budget` limits the env steps first."""
        budget = (self.gradient_steps or OFFLINE_STEPS) if self.is_offline else self.total_env_steps
        return -(-budget // self.env_steps_per_update)


def _validate_roll_back(learner: LearnerConfig, checkpoint: CheckpointConfig) -> None:
    """Raises if a run that rolls back may have only checkpoints of updates that were skipped."""
    skipped, interval = learner.max_nonfinite_updates, checkpoint.interval_updates
    if learner.on_nonfinite != "roll_back" or not skipped:
        return
    if not interval or (checkpoint.max_to_keep - 1) * interval < skipped - 1:
        kept = f"the newest {checkpoint.max_to_keep}, one every {interval} updates" if interval else "one, at the end"
        raise UserError(
            f"learner.on_nonfinite roll_back needs a checkpoint from before the {skipped} skipped updates that trigger it, and "
            f"the run keeps {kept}: use --checkpoint.interval-updates {skipped}, and --checkpoint.max-to-keep 2 or more"
        )


def _validate_choices(run: RunConfig) -> None:
    for field in dataclasses.fields(run):
        if dataclasses.is_dataclass(part := getattr(run, field.name)):
            validate.choices(part, f"{field.name}.")
