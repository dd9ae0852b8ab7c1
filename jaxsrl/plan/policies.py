"""Distribution policies (MSRL): pure functions from a RunConfig and Resources to a Plan."""

import dataclasses
from collections.abc import Callable

from envpool_bridge.errors import UserError
from envpool_bridge.shm.layout import PoolShape
from jaxsrl.config.run_config import RunConfig
from jaxsrl.machine.resources import Resources
from jaxsrl.plan.fragment import (
    EACH_GROUP,
    Carries,
    Channel,
    Devices,
    Fragment,
    FragmentKind,
    InProcess,
    Placement,
    Processes,
    Transport,
    WhenFull,
)
from jaxsrl.plan.plan import Plan
from jaxsrl.plan.pool_shape import pool_shape

MakePlan = Callable[[RunConfig, Resources], Plan]

REPLAY, DATASET = "replay", "dataset"
"""Names of the fragments of experience."""

_HOST = Devices((0,), "cpu")


def serial(run: RunConfig, resources: Resources) -> Plan:
    """Returns a plan with one lane of all environments, which step, act and learn in turn in the main process.

    Tests compare every other plan with it.
    """
    del resources  # the plan is the same on every machine
    return _in_process_plan("serial", run, InProcess(), _first_device(run), run.policy_lag)


def single_learner_coarse(run: RunConfig, resources: Resources) -> Plan:
    """Returns a plan with one actor for each environment worker, acting for its own environments on the CPU; one learner.

    MSRL's SingleLearnerCoarse; the shape of IMPALA, Acme and Sample Factory. Only whole trajectories cross processes.

    Raises:
        UserError: If the rows do not divide, or `workers_per_lane` is not 1.
    """
    del resources
    if run.pool.workers_per_lane > 1:
        raise UserError(
            f"plan single_learner_coarse: an actor acts for its own rows only: expected workers_per_lane 1, got "
            f"{run.pool.workers_per_lane}"
        )
    # One lane: an actor never waits for a reply, which a second lane would bridge.
    shape = pool_shape("single_learner_coarse", run, lanes_per_worker=1)
    actors, lag = Processes(shape.num_workers), run.policy_lag
    return Plan(
        name="single_learner_coarse",
        fragments=(
            Fragment("environments", FragmentKind.ENVIRONMENT, 1, actors),
            Fragment("inference", FragmentKind.INFERENCE, 1, actors),
            _learner(run),
        ),
        channels=(
            Channel("environments", "inference", Carries.OBSERVATIONS, Transport.IN_PROCESS, 1),
            Channel("inference", "environments", Carries.ACTIONS, Transport.IN_PROCESS, 1),
            _trajectories(run, Transport.SHARED_RING, shape.num_slots),
            Channel("learner", "inference", Carries.PARAMETERS, Transport.SHARED_BLOCK, 2, max_lag=lag),
        ),
        shape=shape,
    )


def single_learner_fine(run: RunConfig, resources: Resources) -> Plan:
    """Returns a plan with environments divided over workers and lanes, and one inference call for each lane and step.

    MSRL's SingleLearnerFine; the shape of SEED RL, and of SRL with inline devices.

    Raises:
        UserError: If the rows do not divide.
    """
    return _served_plan("single_learner_fine", run, resources, _first_device(run), _learner(run))


def decoupled(run: RunConfig, resources: Resources) -> Plan:
    """Returns a plan in which the first `num_devices` devices learn and the next `num_inference_devices` act.

    SRL's shape, and that of Sebulba and Cleanba. With inference platform "cpu", the CPU acts while an accelerator learns.

    Raises:
        UserError: If the rows do not divide over the servers, or there are too few devices for inference, or more than servers.
    """
    servers = run.inference.num_servers
    if run.inference.num_devices > servers:
        raise UserError(
            f"plan decoupled: fragment inference: {servers} servers, one device each, leave some of {run.inference.num_devices} "
            f"devices idle: use --inference.num-servers {run.inference.num_devices} or --inference.num-devices {servers}"
        )
    if run.inference.platform == "cpu":
        acting = _HOST
    else:
        acting = Devices(tuple(range(run.learner.num_devices, run.learner.num_devices + run.inference.num_devices)))
        if max(acting.indices) >= resources.num_devices:
            raise UserError(
                f"plan decoupled: fragment inference: {run.inference.num_devices} devices next to {run.learner.num_devices} of "
                f"the learner are requested, but there are {resources.num_devices}: use fewer --learner.num-devices, "
                f"--inference.platform cpu with an accelerator, or split a CPU-only host: --machine.num-cpu-devices 2"
            )
    return _served_plan("decoupled", run, resources, acting, _learner(run), servers)


def multiple_learners(run: RunConfig, resources: Resources) -> Plan:
    """Returns a plan with one replica of every fragment on each of `num_devices` devices; gradients are all-reduced.

    MSRL's MultipleLearners; the shape of DD-PPO. The data of a replica never leaves its device, unless the CPU acts.

    Raises:
        UserError: rows or workers do not divide over the replicas.
    """
    replicas = run.learner.num_devices
    acting = _HOST if run.inference.platform == "cpu" else _learning_devices(run)
    return _served_plan("multiple_learners", run, resources, acting, _learner(run, replicas), replicas)


def central(run: RunConfig, resources: Resources) -> Plan:
    """Returns a plan with `num_replicas` replicas (one a device if 0) over `num_devices` devices, and a server on the first.

    MSRL's Central; A3C when asynchronous. Replicas push each gradient, a parameter server applies it, and they pull the updated
    parameters.

    Raises:
        UserError: rows or workers do not divide over the replicas, or asynchronous replicas leave devices idle.
    """
    replicas = run.learner.num_replicas or run.learner.num_devices
    synchronous = run.learner.gradients == "synchronous"
    if not synchronous and run.learner.num_devices > replicas:
        raise UserError(
            f"plan central: fragment learner: {replicas} asynchronous replicas, one device each, leave some of "
            f"{run.learner.num_devices} devices idle: use --learner.num-replicas {run.learner.num_devices} or fewer devices"
        )
    gradients = Channel(
        "learner",
        "server",
        Carries.GRADIENTS,
        Transport.DEVICE_COPY,
        replicas,
        max_lag=0 if synchronous else run.learner.max_gradient_staleness,
        synchronous=synchronous,
    )
    parameters = Channel("server", "learner", Carries.PARAMETERS, Transport.DEVICE_COPY, 1)
    acting = _HOST if run.inference.platform == "cpu" else _learning_devices(run)
    plan = _served_plan("central", run, resources, acting, _learner(run, replicas), replicas)
    server = Fragment("server", FragmentKind.PARAMETER_SERVER, 1, Devices((0,)))
    return dataclasses.replace(
        plan,
        fragments=(*plan.fragments, server),
        channels=(*served_channels(run, plan.shape, parameters_from="server"), gradients, parameters),
    )


def device_only(run: RunConfig, resources: Resources) -> Plan:
    """Returns a plan with JAX environments, acting and learning in one jitted program, sharded over `num_devices`.

    MSRL's GPUOnly; the shape of Anakin, WarpDrive and PureJaxRL. The newest policy acts, whatever the lag of the run.
    """
    del resources
    devices = _learning_devices(run)
    return _in_process_plan("device_only", run, devices, devices, max_lag=0)


def dedicated_environments(run: RunConfig, resources: Resources) -> Plan:
    """Returns a plan that pins each worker to one of the last cores and leaves the first to inference and learning.

    MSRL's Environments, for expensive environments. The learner's devices are divided among the policies that learn
    (`jaxsrl.plan.passes.policy_groups`).

    Raises:
        UserError: If the rows do not divide, or there are not enough cores.
    """
    workers = run.pool.num_workers
    if workers >= resources.num_cores:
        fewer = f"--pool.num-workers {resources.num_cores - 1} or " if resources.num_cores > 1 else ""
        raise UserError(
            f"plan dedicated_environments: fragment environments: {workers} workers need a core each, and inference and "
            f"learning one more, but there are {resources.num_cores}: use {fewer}--plan single_learner_fine, which shares cores"
        )
    cores = tuple(range(resources.num_cores - workers, resources.num_cores))
    learner = _learner(run, group=EACH_GROUP)
    return _served_plan("dedicated_environments", run, resources, _first_device(run), learner, cores=cores)


def distributed_replay(run: RunConfig, resources: Resources) -> Plan:
    """Returns the plan `single_learner_coarse` with replay in host memory, whatever `replay.memory` is.

    The shape of Ape-X (Horgan et al. 2018) and R2D2 (Kapturowski et al. 2019). With a `max_policy_lag` of 2 or more, actors wait
    only for a learner that is that many trajectories behind.

    Raises:
        UserError: If the rows do not divide, or `workers_per_lane` is not 1.
    """
    coarse = single_learner_coarse(run, resources)
    *actors, learner = coarse.fragments
    return dataclasses.replace(
        coarse,
        name="distributed_replay",
        fragments=(*actors, Fragment(REPLAY, FragmentKind.REPLAY, 1, InProcess()), learner),
        channels=replay_channels(coarse.channels, learner.name, on_host=True),
    )


def offline(run: RunConfig, resources: Resources) -> Plan:
    """Returns a plan with a dataset in the main process's memory and a learner, without environments and inference."""
    del resources
    return Plan(
        name="offline",
        fragments=(
            Fragment(DATASET, FragmentKind.DATASET, 1, InProcess()),
            _learner(run),
        ),
        channels=(
            Channel(DATASET, "learner", Carries.SAMPLES, Transport.DEVICE_COPY, 1, WhenFull(run.learner.when_full)),
        ),
        shape=PoolShape(1, 1, 1, run.num_envs, run.rollout_length, 1),
    )


PLANS: dict[str, MakePlan] = {
    "serial": serial,
    "single_learner_coarse": single_learner_coarse,
    "single_learner_fine": single_learner_fine,
    "decoupled": decoupled,
    "multiple_learners": multiple_learners,
    "central": central,
    "device_only": device_only,
    "dedicated_environments": dedicated_environments,
    "distributed_replay": distributed_replay,
    "offline": offline,
}
"""Distribution policies by the name that `--plan` takes."""

REPLAY_PLANS = frozenset({"distributed_replay", "offline"})
"""Plans for agents that learn from replay only."""


def _learning_devices(run: RunConfig) -> Devices:
    return Devices(tuple(range(run.learner.num_devices)))


def _first_device(run: RunConfig) -> Devices:
    return Devices((0,), run.inference.jax_platform)


def _learner(run: RunConfig, replicas: int = 1, group: str = "") -> Fragment:
    return Fragment("learner", FragmentKind.LEARNER, replicas, _learning_devices(run), group)


def _in_process_plan(name: str, run: RunConfig, environments: Placement, acting: Devices, max_lag: int) -> Plan:
    """Returns a plan of fragments that run in turn in the main process, or as one program."""
    return Plan(
        name=name,
        fragments=(
            Fragment("environments", FragmentKind.ENVIRONMENT, 1, environments),
            Fragment("inference", FragmentKind.INFERENCE, 1, acting),
            _learner(run),
        ),
        channels=in_process_channels(run, max_lag),
        shape=PoolShape(1, 1, 1, run.num_envs, run.rollout_length, max_lag + 1),
    )


def _served_plan(
    name: str,
    run: RunConfig,
    resources: Resources,
    acting: Devices,
    learner: Fragment,
    replicas: int = 1,
    cores: tuple[int, ...] = (),
) -> Plan:
    """Returns a plan of environment processes on `cores` and inference servers, `replicas` of each, and one learner."""
    shape = pool_shape(name, run, replicas, resources=resources)
    return Plan(
        name=name,
        fragments=(
            Fragment("environments", FragmentKind.ENVIRONMENT, replicas, Processes(shape.num_workers, cores)),
            Fragment("inference", FragmentKind.INFERENCE, replicas, acting),
            learner,
        ),
        channels=served_channels(run, shape),
        shape=shape,
        merge_lanes=run.inference.batching == "merged",
    )


def in_process_channels(run: RunConfig, max_lag: int) -> tuple[Channel, ...]:
    """Returns the channels of fragments that run in turn in one process."""
    return (
        Channel("environments", "inference", Carries.OBSERVATIONS, Transport.IN_PROCESS, 1),
        Channel("inference", "environments", Carries.ACTIONS, Transport.IN_PROCESS, 1),
        _trajectories(run, Transport.IN_PROCESS, 1),
        Channel("learner", "inference", Carries.PARAMETERS, Transport.IN_PROCESS, max_lag + 1, max_lag=max_lag),
    )


def served_channels(run: RunConfig, shape: PoolShape, parameters_from: str = "learner") -> tuple[Channel, ...]:
    """Returns the channels of environment workers whose slots an inference server and a learner read."""
    lag = run.policy_lag
    return (
        Channel("environments", "inference", Carries.OBSERVATIONS, Transport.SHARED_RING, shape.num_lanes),
        Channel("inference", "environments", Carries.ACTIONS, Transport.SHARED_RING, shape.num_lanes),
        _trajectories(run, Transport.SHARED_RING, shape.num_slots),
        Channel(parameters_from, "inference", Carries.PARAMETERS, Transport.DEVICE_COPY, lag + 1, max_lag=lag),
    )


def _trajectories(run: RunConfig, transport: Transport, capacity: int) -> Channel:
    """Returns the channel into the learner as `run` asks for it; `validate_plan` rejects what the plan cannot do."""
    return Channel(
        "environments",
        "learner",
        Carries.TRAJECTORIES,
        transport,
        capacity,
        WhenFull(run.learner.when_full),
        kept=run.learner.trajectory_buffer_size,
        reuses=run.learner.sample_reuse,
    )


def replay_channels(channels: tuple[Channel, ...], learner: str, on_host: bool) -> tuple[Channel, ...]:
    """Returns the channels of a plan with replay between its environments and its learner.

    Args:
        channels: Channels of the plan without it.
        learner: name of the fragment that learns.
        on_host: whether host memory stores the experience, from which samples are copied to the learner's devices.
    """
    rerouted = tuple(
        dataclasses.replace(channel, target=REPLAY)
        if channel.carries is Carries.TRAJECTORIES and channel.target == learner
        else channel
        for channel in channels
    )
    transport = Transport.DEVICE_COPY if on_host else Transport.IN_PROCESS
    return (*rerouted, Channel(REPLAY, learner, Carries.SAMPLES, transport, 1))
