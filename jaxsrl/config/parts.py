"""The parts of a RunConfig: one frozen dataclass for each component of a run."""

import dataclasses
from typing import Any, Literal

from envpool_bridge.envs.json_arguments import json_text
from envpool_bridge.errors import UserError
from envpool_bridge.options import SupervisorOptions

AUTO = "auto"


def validate_at_least(minimum: int, part: str, config: Any, *names: str) -> None:
    """Rejects fields below a minimum, and NaN. A field that is None is accepted.

    Args:
        minimum: Minimum of every field.
        part: prefix of the flags, e.g. `pool`.
        config: dataclass that has the fields.
        names: Names of the fields.

    Raises:
        UserError: If a field is too small or NaN; names the first one.
    """
    wanted = f"must be at least {minimum}" if minimum else "must not be negative"
    for name in names:
        value = getattr(config, name)
        if value is not None and not value >= minimum:  # NaN is neither below nor above
            raise UserError(f"{part}.{name} {wanted}: got {value}")


@dataclasses.dataclass(frozen=True)
class PoolConfig:
    """Worker processes that step the environments.

    Attributes:
        num_workers: environment worker processes, over all learner processes.
        lanes_per_worker: groups of environments that a worker alternates between. It steps one while another waits for actions.
        workers_per_lane: workers that share a lane, and wait together for its inference call. 0 chooses: one where a CPU acts, with
            "merged" batching, on a cluster, or where learner processes divide the workers. Elsewhere, where an accelerator acts,
            as many as leave an inference server two lanes, because calls take about a millisecond for any number of rows.
        supervision: restarts and timeouts of workers, and the treatment of failing environments.
    """

    num_workers: int = 2
    lanes_per_worker: int = 2
    workers_per_lane: int = 0
    supervision: SupervisorOptions = dataclasses.field(default_factory=SupervisorOptions)

    def __post_init__(self) -> None:
        validate_at_least(1, "pool", self, "num_workers", "lanes_per_worker")
        validate_at_least(0, "pool", self, "workers_per_lane")


@dataclasses.dataclass(frozen=True)
class InferenceConfig:
    """Batched inference, which chooses the actions.

    Attributes:
        batching: "lane" makes one call of fixed shape for each lane, which is bit-for-bit deterministic. "merged" combines the
            lanes that are ready (SEED RL's dynamic batching).
        platform: "auto" acts on the devices of jax's default platform. "cpu" acts on the CPU while an accelerator learns, and
            makes inference servers of a cluster use processors. Not for plan `device_only`.
        num_devices: devices that only act. Used by plan `decoupled`.
        num_servers: batched inference servers that share the environments. Used by plan `decoupled`.
    """

    batching: Literal["lane", "merged"] = "lane"
    platform: Literal["auto", "cpu"] = "auto"
    num_devices: int = 1
    num_servers: int = 1

    def __post_init__(self) -> None:
        validate_at_least(1, "inference", self, "num_devices", "num_servers")

    @property
    def jax_platform(self) -> str:
        """Returns the platform's name for `jax.devices`; "" for the default one."""
        return "" if self.platform == "auto" else self.platform


@dataclasses.dataclass(frozen=True)
class LearnerConfig:
    """Devices and replicas that learn, and their queue of trajectories.

    Attributes:
        num_devices: devices over which an update is sharded, over all learner processes.
        num_replicas: replicas that compute gradients; 0 for one on each device. Used by plan `central`.
        gradients: "synchronous" waits for every replica; "asynchronous" applies each gradient on arrival. Used by plan `central`.
        max_gradient_staleness: gradient steps by which an asynchronous gradient may be stale. Older ones are dropped and counted.
        when_full: "block" makes environments wait for the learner. "drop_oldest" makes the learner take the newest trajectory
            and drop (and count) older ones; it needs a policy lag of 2 or more.
        trajectory_buffer_size: trajectories buffered for the learner with "drop_oldest" instead of being dropped. The least-used
            one is sampled first, then the newest (SRL's priority queue). Trajectories beyond the policy lag are dropped.
        sample_reuse: updates that may use one buffered trajectory. `total_env_steps` counts each use.
        max_nonfinite_updates: consecutive updates, skipped because of a NaN or an infinity, that trigger `on_nonfinite`; 0 for no
            limit. The batch of the last one is written into the run directory if it is in the memory of one learner's host: not
            with plans `device_only` and `offline`, asynchronous gradients or several learner processes.
        on_nonfinite: "stop" ends the run with an error; "roll_back" restores the newest checkpoint from before them and removes
            later ones. If no update is finite after that, it restores an older one, and ends the run where there is none.
    """

    num_devices: int = 1
    num_replicas: int = 0
    gradients: Literal["synchronous", "asynchronous"] = "synchronous"
    max_gradient_staleness: int = 8
    when_full: Literal["block", "drop_oldest"] = "block"
    trajectory_buffer_size: int = 0
    sample_reuse: int = 1
    max_nonfinite_updates: int = 10
    on_nonfinite: Literal["stop", "roll_back"] = "stop"

    def __post_init__(self) -> None:
        validate_at_least(1, "learner", self, "num_devices", "sample_reuse")
        counts = "num_replicas", "max_gradient_staleness", "trajectory_buffer_size", "max_nonfinite_updates"
        validate_at_least(0, "learner", self, *counts)
        if self.trajectory_buffer_size and self.when_full != "drop_oldest":
            raise UserError(
                f"learner.trajectory_buffer_size {self.trajectory_buffer_size} buffers trajectories that would be dropped, but "
                f"learner.when_full is {self.when_full!r}: use --learner.when-full drop_oldest (and --run.max-policy-lag 2 or more)"
            )
        if self.gradients == "asynchronous" and self.on_nonfinite == "roll_back":
            raise UserError(
                "learner.on_nonfinite roll_back: asynchronous replicas cannot be rolled back: use --learner.gradients synchronous, "
                "or --learner.on-nonfinite stop"
            )
        if self.sample_reuse > 1 and not self.trajectory_buffer_size:
            raise UserError(
                f"learner.sample_reuse {self.sample_reuse} needs buffered trajectories: use --learner.trajectory-buffer-size 16"
            )


@dataclasses.dataclass(frozen=True)
class ReplayMemoryConfig:
    """Storage of replayed experience, for agents that learn from replay.

    Attributes:
        memory: "device" stores experience in the memory of the learning devices; "host" in that of this machine, which is
            larger; "cluster" in that of another node. The samples are the same.
        prepare_devices: devices that apply the agent's transforms to samples (reanalysis), next to the learner; 0 lets the learner
            do it. They need experience outside the learner's devices.
        prepare_lag: gradient steps by which the parameters of these devices may be behind the learner's, and samples that are
            prepared ahead.
    """

    memory: Literal["device", "host", "cluster"] = "device"
    prepare_devices: int = 0
    prepare_lag: int = 0

    def __post_init__(self) -> None:
        validate_at_least(0, "replay", self, "prepare_devices", "prepare_lag")

    @property
    def is_remote(self) -> bool:
        """Returns whether another node stores the experience."""
        return self.memory == "cluster"


@dataclasses.dataclass(frozen=True)
class DatasetConfig:
    """Recorded steps to learn from.

    Attributes:
        path: directory of a dataset; "" for none. With plan `offline`, all experience is from it. With other plans, agents with
            replay on the host learn from it too.
        share: Where there are environments, share of the windows of each sample that are from the dataset.
        gradient_steps_per_update: Gradient steps of plan `offline` between two versions of the
            policy: the unit of evaluations, checkpoints and schedules.
    """

    path: str = ""
    share: float = 0.5
    gradient_steps_per_update: int = 1000

    def __post_init__(self) -> None:
        validate_at_least(1, "dataset", self, "gradient_steps_per_update")
        if not 0.0 < self.share < 1.0:
            raise UserError(
                f"dataset.share must be between 0 and 1: got {self.share}; plan offline takes all from the dataset"
            )


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
    """Checkpoints of a run.

    Attributes:
        interval_updates: updates between checkpoints; 0 saves at the end only.
        max_to_keep: newest checkpoints to keep.
        keep_every: env steps between models that are kept, with the tag "step-ENV_STEPS"; 0 for none. A model is the
            learner state without experience and episodes in progress.
        models_to_keep: newest models without a tag to keep.
        include_replay: save the experience of replay too. Otherwise a resumed run collects new experience before it learns, and
            differs from an uninterrupted one.
        replay_episodes: repeat the episodes in progress at a resume. Otherwise new ones start, and the run differs as well.
        partial_restore: restore the arrays that match (another network, algorithm or size), report the others, and restart the
            environments where anything differs. Otherwise a mismatch is an error that lists every difference.
        accept_changed_code: continue although modules or functions of yours changed, which the environment or the agent uses.
            Otherwise that is an error that names them.
    """

    interval_updates: int = 100
    max_to_keep: int = 3
    keep_every: int = 0
    models_to_keep: int = 3
    include_replay: bool = True
    replay_episodes: bool = True
    partial_restore: bool = False
    accept_changed_code: bool = False

    def __post_init__(self) -> None:
        validate_at_least(0, "checkpoint", self, "interval_updates", "keep_every", "models_to_keep")
        validate_at_least(1, "checkpoint", self, "max_to_keep")


@dataclasses.dataclass(frozen=True)
class ClusterConfig:
    """Environments, inference servers and replay on other machines.

    Attributes:
        address: "auto" uses the Ray cluster that is running; "local" starts a small one on this machine; "none" uses no cluster.
        num_hosts: environment hosts, which share the environments; 0 for one on each node (two with "local").
        placement: Placement of the hosts, which are reserved together. "spread": over as many nodes as possible; "pack": onto as
            few; "strict_spread": one host a node; "strict_pack": all on one node.
        host_memory_gib: memory in GiB that each host reserves; 0 reserves none.
        placement_timeout_seconds: longest wait for room for all hosts.
        num_inference_servers: inference servers on nodes of their own for each learner process; they act for the environments
            of all hosts. 0 makes each host act for its own.
    """

    address: Literal["none", "auto", "local"] = "none"
    num_hosts: int = 0
    placement: Literal["spread", "pack", "strict_spread", "strict_pack"] = "spread"
    host_memory_gib: float = 0.0
    placement_timeout_seconds: float = 60.0
    num_inference_servers: int = 0

    def __post_init__(self) -> None:
        validate_at_least(
            0, "cluster", self, "num_hosts", "host_memory_gib", "placement_timeout_seconds", "num_inference_servers"
        )
        if self.num_inference_servers and not self.is_used:
            raise UserError(
                f"cluster.num_inference_servers {self.num_inference_servers} are servers on nodes of a cluster: use "
                f"--cluster.address local or auto with it, or --inference.num-servers on one machine"
            )

    @property
    def is_used(self) -> bool:
        """Returns whether the run uses a cluster."""
        return self.address != "none"


@dataclasses.dataclass(frozen=True)
class MachineConfig:
    """Settings of this machine.

    Attributes:
        num_cpu_devices: jax devices into which each process splits its CPU; 0 leaves it whole.
        disable_cpu_idle: disable CPU idle states during the run. Environments that wait run up to a tenth faster on virtual
            machines. Costs power, and needs write access to /dev/cpu_dma_latency.
    """

    num_cpu_devices: int = 0
    disable_cpu_idle: bool = False

    def __post_init__(self) -> None:
        validate_at_least(0, "machine", self, "num_cpu_devices")


@dataclasses.dataclass(frozen=True)
class EvalConfig:
    """Evaluation while a run trains, in a process of its own on the CPU, and after training.

    Attributes:
        every: env steps between evaluated versions; 0 evaluates only after training.
        episodes: episodes of each evaluation while the run trains.
        mode: actions of these episodes: the most likely ones ("greedy"), sampled ones ("sample"), or both in turn.
        env_kwargs: arguments of the environment that replace those of training, in the forms of `EnvConfig.kwargs`: frame_skip=2.
        max_rows: environments of an evaluation that step together; never more than `run.num_envs`.
        max_episode_steps: env steps after which an episode is cut and counted; None for 27,000 without a known time limit.
        seeds: seeds of the episodes in turn, each equally often (levels of JAX environments); empty draws them from `run.seed`.
        levels: number of levels, the seeds 0 to N - 1, to play instead; 0 for none.
        stage: stage to play; None for that of training, or the last one of a curriculum.
        agents: pattern of the names of the agents whose mean return counts for the best model and for rules that stop a run.
        final_episodes: greedy episodes after training; 0 for none.
        processes: worker processes that step the environments of these, at most; 0 for the process of the run.
    """

    every: int = 0
    episodes: int = 20
    mode: Literal["greedy", "sample", "both"] = "greedy"
    env_kwargs: Any = "{}"
    max_rows: int = 32
    max_episode_steps: int | None = None
    seeds: tuple[int, ...] = ()
    levels: int = 0
    stage: int | None = None
    agents: str = "*"
    final_episodes: int = 100
    processes: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "env_kwargs", json_text(self.env_kwargs, "eval.env_kwargs"))
        validate_at_least(0, "eval", self, "every", "final_episodes", "processes", "levels")
        validate_at_least(1, "eval", self, "episodes", "max_rows", "max_episode_steps")
        if self.seeds and self.levels:
            raise UserError(f"eval.levels {self.levels} are the seeds 0 to {self.levels - 1}: omit it, or eval.seeds")

    @property
    def modes(self) -> tuple[str, ...]:
        """Returns the modes of each evaluation. Returns of the first one choose the best model and stop runs."""
        return ("greedy", "sample") if self.mode == "both" else (self.mode,)


@dataclasses.dataclass(frozen=True)
class MetricsConfig:
    """Sinks of a run. A failing sink never ends it: rejected records are counted (`metrics/dropped_records_total`).

    Attributes:
        interval_seconds: seconds between records.
        tensorboard: write TensorBoard event files into the run directory.
        wandb: also send records to Weights & Biases (WANDB_MODE=offline keeps them in the run directory). A resumed run continues
            the same run there. Needs jaxsrl[wandb].
        wandb_project: project there.
        wandb_entity: user or team there; "" for that of the API key.
        prometheus_port: TCP port where Prometheus may scrape the newest record, as http://ADDRESS:PORT/metrics; 0 for none.
        prometheus_address: address of the port. Other than a loopback address, it lets anyone who reaches it read the metrics.
    """

    interval_seconds: float = 2.0
    tensorboard: bool = True
    wandb: bool = False
    wandb_project: str = "jaxsrl"
    wandb_entity: str = ""
    prometheus_port: int = 0
    prometheus_address: str = "127.0.0.1"

    def __post_init__(self) -> None:
        validate_at_least(0, "metrics", self, "interval_seconds")
        if not 0 <= self.prometheus_port < 1 << 16:
            raise UserError(
                f"metrics.prometheus_port must be from 1 to 65535, or 0 for none: got {self.prometheus_port}"
            )


@dataclasses.dataclass(frozen=True)
class DistributedConfig:
    """Learner processes that train one agent together. Each starts with the same experiment; process 0 writes the run.

    Attributes:
        coordinator: HOST:PORT of process 0, which listens on that address alone; "auto" reads the environment variables of Slurm,
            Kubernetes or Open MPI; "" for a run of one process.
        num_processes: Number of processes of the run; detected with "auto".
        process_id: Process id of this one, from 0; detected with "auto".
        local_devices: accelerators of its host that this process uses, by number; () for all, or those the scheduler assigned.
            Processes that share a host need different ones.
        start_seconds: longest wait for the other processes at the start.
        wait_seconds: longest wait for the other processes before an update; then the run ends. It includes replaying environments
            of a resumed run.
        lost_seconds: time without a sign of life after which a process counts as lost and the run ends. A broken connection is
            detected at once.
    """

    coordinator: str = ""
    num_processes: int = 0
    process_id: int = -1
    local_devices: tuple[int, ...] = ()
    start_seconds: int = 300
    wait_seconds: int = 600
    lost_seconds: int = 30

    def __post_init__(self) -> None:
        validate_at_least(1, "distributed", self, "start_seconds", "wait_seconds", "lost_seconds")
        if len(set(self.local_devices)) < len(self.local_devices) or min(self.local_devices, default=0) < 0:
            raise UserError(
                f"distributed.local_devices must be different numbers from 0: got {list(self.local_devices)}; give every "
                f"process of a host its own, --distributed.local-devices 0 for the first"
            )
        given = self.num_processes, self.process_id
        if not self.coordinator or self.coordinator == AUTO:
            if given != (0, -1):
                raise UserError(
                    f"distributed.num_processes and process_id need distributed.coordinator HOST:PORT: got "
                    f"{given[0]} and {given[1]} with coordinator {self.coordinator!r}"
                )
            return
        host, _, port = self.coordinator.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
            raise UserError(f"distributed.coordinator must be HOST:PORT or auto: got {self.coordinator!r}")
        if self.num_processes < 1 or not 0 <= self.process_id < self.num_processes:
            raise UserError(
                f"with distributed.coordinator, num_processes must be at least 1 and process_id from 0 to one less: got "
                f"{given[0]} and {given[1]}"
            )

    @property
    def is_on(self) -> bool:
        """Returns whether the run has, or may have, several processes."""
        return bool(self.coordinator)
