"""RunConfig: everything about a run that is neither the environment nor the algorithm; and configurations as JSON."""

import dataclasses
from typing import Annotated, Literal

import tyro

from envpool_bridge.errors import UserError
from envpool_bridge.options import SupervisorOptions
from jaxsrl.config.learner_processes import DistributedConfig
from jaxsrl.config.metrics_config import MetricsConfig

_LONGEST_WAIT_SECONDS = 1e9  # locks and conditions take no longer timeouts

# Where fragments run, and how far behind the learner they may be. The results of a run depend on these options.
_PLACEMENT = frozenset(
    {
        "run.policy",
        "run.num_env_workers",
        "run.lanes_per_worker",
        "run.workers_per_lane",
        "run.max_policy_lag",
        "run.when_full",
        "run.kept_trajectories",
        "run.trajectory_reuses",
        "run.inference_batching",
        "run.num_devices",
        "run.inference_platform",
        "run.num_inference_devices",
        "run.num_inference_servers",
        "run.num_replicas",
        "run.gradients",
        "run.max_gradient_staleness",
    }
)

# Budget, saving, supervision and reports. The steps of a run do not depend on these options. A schedule over the whole run (a
# learning rate that falls to 0, say) stretches with `env_steps`: what follows is then not the longer run from the start.
OPERATION = frozenset(
    {
        "run.env_steps",
        "run.directory",
        "run.evaluation_episodes",
        "run.host_devices",
        "run.checkpoint_every_updates",
        "run.keep_checkpoints",
        "run.log_every_seconds",
        "run.grace_seconds",
        "run.stall_timeout_seconds",
        *(f"run.supervision.{field.name}" for field in dataclasses.fields(SupervisorOptions)),
        "run.metrics",  # which directories of older versions do not know
        *(f"run.metrics.{field.name}" for field in dataclasses.fields(MetricsConfig)),
        "run.distributed",  # which directories of older versions do not know
        *(f"run.distributed.{field.name}" for field in dataclasses.fields(DistributedConfig)),
        "run.cluster",  # where environments are decides nothing that they do
        "run.cluster_nodes",
        "run.cluster_placement",
        "run.cluster_host_gib",
        "run.cluster_wait_seconds",
        "run.cluster_inference_servers",
        "run.cluster_replay",
        "run.checkpoint_replay",
        "run.replay_on",
        "run.max_skipped_updates",
        "run.when_not_finite",
        "run.partial",
        "run.keep_cores_awake",
    }
)

# Options that may differ when a run directory is resumed. `num_envs` and `rollout_length` are the size of an update, and may not.
MAY_CHANGE = _PLACEMENT | OPERATION


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """Sizes, budget and directory of a run.

    Attributes:
        name: of the run's directory; "" makes one from the experiment, the environment and the seed.
        directory: where runs live.
        seed: of everything random.
        policy: distribution policy, which places environments, inference and learning: a name of
            jaxsrl.plan.policies.PLANS, or your own as "path/to/file.py:function" or "module:function".
        env_steps: total environment steps.
        num_envs: B, environments stepped in all.
        num_env_workers: environment processes.
        lanes_per_worker: groups of environments a worker alternates between.
        workers_per_lane: workers that share a lane: larger inference batches, but they wait for each other.
        rollout_length: T, steps of every environment an update.
        max_policy_lag: updates that the acting policy may be behind: 0 synchronous, 1 overlaps collecting with learning
            (both deterministic), n >= 2 asynchronous.
        when_full: of the trajectories: "block" makes environments wait for the learner, "drop_oldest" makes the learner take the
            newest and drop (and count) the others; that needs a lag of 2 or more.
        kept_trajectories: with "drop_oldest": so many are kept for the learner instead of being dropped at once. What was learned
            from least is next, the newest of it first (SRL's priority queue); what is more than `max_policy_lag` updates behind
            is dropped.
        trajectory_reuses: times that each of those is learned from, at most. `env_steps` counts it each time.
        inference_batching: "lane" gives every lane its own call of fixed shape (deterministic to the bit), "merged" joins
            whatever lanes are ready.
        num_devices: devices the learner is sharded over.
        inference_platform: "cpu" acts on the host beside an accelerator that learns, and at inference servers of a cluster on
            processors; "" acts on a device.
        num_inference_devices: devices that only act; for `decoupled`.
        num_inference_servers: batched servers that share the rows; for `decoupled`.
        num_replicas: replicas that compute gradients, 0 for one a device; for `central`.
        gradients: "synchronous" waits for every replica, "asynchronous" applies what comes; for `central`.
        max_gradient_staleness: gradient steps that an asynchronous gradient may be behind; older ones are dropped, counted.
        replay_on: for agents that learn from replay: "device" keeps experience in the memory of the devices that learn, "host" in
            that of this machine, which is larger; the samples are the same.
        checkpoint_replay: whether checkpoints hold the experience that replay keeps. Without it a resumed run collects anew before
            it goes on learning, and does not continue to the bit.
        max_skipped_updates: updates in a row that may be left out because something in them was not finite; 0 for any number. After
            that many the batch is written into the run's directory, and `when_not_finite` counts.
        when_not_finite: "stop" ends the run with an error, "roll_back" goes on from what the newest good checkpoint had learned.
        supervision: what is done about environment processes that die or hang, and environments that fail.
        metrics: where records go, besides metrics.jsonl and the terminal.
        distributed: learner processes on several hosts; `num_envs`, `num_env_workers` and `num_devices` are then of all together.
        partial: restore the arrays of a checkpoint that fit (another network, another algorithm, another size), report the others,
            and restart the environments where anything differs. Without it such a checkpoint is rejected, with every difference.
        keep_cores_awake: has no core of this machine fall asleep during the run: for environments that wait, which on a virtual
            machine run up to a tenth faster for it. Costs power, and on Linux the right to write /dev/cpu_dma_latency.
        host_devices: splits a CPU into so many jax devices, in each process; 0 leaves it whole.
        cluster: "auto" has environments on the nodes of the Ray cluster that is there, "local" on those of a small one that is
            started here; "" on this machine.
        cluster_nodes: environment hosts, which share the rows; 0 for one a node of the cluster (two where it is started here).
        cluster_placement: of the hosts, which are reserved together: "spread" over as many nodes as possible, "pack" onto as few,
            "strict_spread" each on a node of its own, "strict_pack" all on one.
        cluster_host_gib: memory in GiB that each host reserves of its node besides cores; 0 reserves none.
        cluster_wait_seconds: that a run waits for the cluster to have room for all of its hosts; then it is refused.
        cluster_inference_servers: batched inference servers on nodes of their own, which act for the rows of all hosts, as many
            for each learner process; 0 has each host act for its own.
        cluster_replay: whether experience for replay is kept on a node with memory of its own, instead of where `replay_on` says.
        checkpoint_every_updates: 0 saves at the end only.
        keep_checkpoints: newest checkpoints to keep.
        log_every_seconds: between lines of metrics.
        grace_seconds: after SIGINT, SIGTERM, SIGHUP or SIGUSR1, before a run that has not stopped exits all the same; 0 for never.
        stall_timeout_seconds: longest time in which nothing happens: no step, no action, no gradient step, no update. Then the run
            ends with an error that says who waits for whom. It must exceed the longest compilation, update
            and checkpoint.
        evaluation_episodes: greedy episodes after training; 0 for none.
    """

    name: str = ""
    directory: str = "runs"
    seed: int = 0
    policy: Annotated[str, tyro.conf.arg(aliases=["--policy"])] = "single_learner_fine"
    env_steps: int = 500_000
    num_envs: int = 128
    num_env_workers: int = 2
    lanes_per_worker: int = 2
    workers_per_lane: int = 1
    rollout_length: int = 32
    max_policy_lag: int = 1
    when_full: Literal["block", "drop_oldest"] = "block"
    kept_trajectories: int = 0
    trajectory_reuses: int = 1
    inference_batching: Literal["lane", "merged"] = "lane"
    num_devices: int = 1
    inference_platform: Literal["", "cpu"] = ""
    num_inference_devices: int = 1
    num_inference_servers: int = 1
    num_replicas: int = 0
    gradients: Literal["synchronous", "asynchronous"] = "synchronous"
    max_gradient_staleness: int = 8
    max_skipped_updates: int = 10
    when_not_finite: Literal["stop", "roll_back"] = "stop"
    partial: bool = False
    replay_on: Literal["device", "host"] = "device"
    checkpoint_replay: bool = True
    keep_cores_awake: bool = False
    host_devices: int = 0
    cluster: Annotated[Literal["", "auto", "local"], tyro.conf.arg(aliases=["--cluster"])] = ""
    cluster_nodes: Annotated[int, tyro.conf.arg(aliases=["--cluster-nodes"])] = 0
    cluster_placement: Literal["spread", "pack", "strict_spread", "strict_pack"] = "spread"
    cluster_host_gib: float = 0.0
    cluster_wait_seconds: float = 60.0
    cluster_inference_servers: int = 0
    cluster_replay: bool = False
    checkpoint_every_updates: int = 100
    keep_checkpoints: int = 3
    log_every_seconds: float = 2.0
    grace_seconds: float = 0.0
    stall_timeout_seconds: float = 1800.0
    evaluation_episodes: int = 100
    supervision: SupervisorOptions = dataclasses.field(default_factory=SupervisorOptions)
    distributed: DistributedConfig = dataclasses.field(default_factory=DistributedConfig)
    metrics: MetricsConfig = dataclasses.field(default_factory=MetricsConfig)

    def __post_init__(self) -> None:
        at_least_one = (
            "env_steps",
            "num_envs",
            "num_env_workers",
            "lanes_per_worker",
            "workers_per_lane",
            "rollout_length",
            "num_devices",
            "num_inference_devices",
            "num_inference_servers",
            "trajectory_reuses",
            "keep_checkpoints",
        )
        for name in at_least_one:
            if getattr(self, name) < 1:
                raise UserError(f"run.{name} must be at least 1: got {getattr(self, name)}")
        not_negative = (
            "seed",
            "max_policy_lag",
            "num_replicas",
            "max_gradient_staleness",
            "kept_trajectories",
            "host_devices",
            "cluster_nodes",
            "cluster_host_gib",
            "cluster_wait_seconds",
            "cluster_inference_servers",
            "max_skipped_updates",
            "checkpoint_every_updates",
            "log_every_seconds",
            "grace_seconds",
            "evaluation_episodes",
        )
        for name in not_negative:
            if getattr(self, name) < 0:
                raise UserError(f"run.{name} must not be negative: got {getattr(self, name)}")
        if not 0.0 < self.stall_timeout_seconds <= _LONGEST_WAIT_SECONDS:
            raise UserError(
                f"run.stall_timeout_seconds must be positive, and at most {_LONGEST_WAIT_SECONDS:g}: got "
                f"{self.stall_timeout_seconds}"
            )
        self._check_cluster()
        if self.kept_trajectories and self.when_full != "drop_oldest":
            raise UserError(
                f"run.kept_trajectories are those that a learner would else drop: got {self.kept_trajectories} with "
                f"run.when_full {self.when_full!r}; use --run.when-full drop_oldest (and --run.max-policy-lag 2 or more)"
            )
        if self.trajectory_reuses > 1 and not self.kept_trajectories:
            raise UserError(
                f"run.trajectory_reuses {self.trajectory_reuses} needs trajectories that are kept: "
                f"use --run.kept-trajectories 16 or so"
            )
        if "/" in self.name or self.name in {".", ".."}:
            raise UserError(
                f"run.name must be a plain directory name: got {self.name!r}; use run.directory for the place"
            )

    def _check_cluster(self) -> None:
        """Refuses what only nodes of a cluster have, where there is none."""
        if self.cluster_inference_servers and not self.cluster:
            raise UserError(
                f"run.cluster_inference_servers {self.cluster_inference_servers} are servers on the nodes of a cluster: use "
                f"--run.cluster local or auto with it, or --run.num-inference-servers on one machine"
            )
        if self.cluster_replay and not self.cluster:
            raise UserError(
                "run.cluster_replay keeps experience on a node of a cluster: use --run.cluster local or auto with it, or "
                "--run.replay-on host on one machine"
            )

    @property
    def replay_place(self) -> Literal["device", "host"]:
        """Where experience is kept, for a plan that is not on nodes yet: from the host it can be moved to another one."""
        return "host" if self.cluster_replay else self.replay_on

    @property
    def env_steps_per_update(self) -> int:
        """Environment steps that one update learns from."""
        return self.num_envs * self.rollout_length

    @property
    def num_updates(self) -> int:
        """Updates that `env_steps` take, rounded up."""
        return -(-self.env_steps // self.env_steps_per_update)
