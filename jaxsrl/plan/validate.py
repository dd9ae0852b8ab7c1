"""Validation of plans before anything starts; every message names the fragment and the number at fault."""

from envpool_bridge.errors import UserError
from envpool_bridge.shm.layout import SlotLayout
from jaxsrl.machine.resources import Resources
from jaxsrl.plan.cost.channel_bytes import ReplayBytes
from jaxsrl.plan.fragment import EACH_GROUP, Carries, Channel, Devices, Fragment, FragmentKind, Processes, WhenFull
from jaxsrl.plan.plan import Plan, nearest_multiple

SAVING_BYTES = 300 * 2**20
"""Most memory that a checkpoint takes in addition to experience: pieces that are copied, and buffers of Orbax."""
_BLOCK = "use WhenFull.BLOCK (--learner.when-full block)"


def validate_plan(plan: Plan, resources: Resources) -> None:
    """Rejects a plan that cannot run on these resources.

    Raises:
        UserError: names the fragment or channel, the number at fault, and what to change.
    """
    names = [fragment.name for fragment in plan.fragments]
    if len(set(names)) != len(names):
        raise UserError(f"plan {plan.name}: fragment names must differ: got {names}")
    if not plan.is_offline:
        for kind in (FragmentKind.ENVIRONMENT, FragmentKind.INFERENCE):
            plan.fragment(kind)
    _validate_groups(plan)
    for channel in plan.channels:
        _validate_channel(plan, channel, names)
    if not plan.is_offline:
        _validate_connections(plan)
    for fragment in plan.fragments:
        _validate_fragment(plan, fragment, resources)
    if plan.is_offline:
        return
    _validate_rows(plan)
    if plan.shape.num_slots < plan.max_policy_lag + 1:
        raise UserError(
            f"plan {plan.name}: max_policy_lag {plan.max_policy_lag} needs at least {plan.max_policy_lag + 1} slots: "
            f"got {plan.shape.num_slots}"
        )


def validate_memory(plan: Plan, layout: SlotLayout, resources: Resources) -> None:
    """Rejects slots that shared memory has no room for.

    Raises:
        UserError: says how many bytes are wanted and free, and what makes them fewer.
    """
    # A node of a cluster says how large its object store is; those of --cluster.address local share this machine's memory.
    if plan.environments.nodes and any(node.object_store_bytes is not None for node in resources.nodes):
        _validate_object_stores(plan, layout, resources)
        return
    if not isinstance(plan.environments.placement, Processes) or resources.shared_memory_bytes is None:
        return
    wanted = layout.total_bytes * plan.environments.replicas
    if wanted > resources.shared_memory_bytes:
        raise UserError(
            f"plan {plan.name}: fragment {plan.environments.name}: {plan.shape.num_slots} slots of {plan.num_rows} rows "
            f"take {wanted:,} bytes of shared memory, but {resources.shared_memory_bytes:,} are free: use fewer "
            f"--run.num-envs, a shorter --run.rollout-length, or a larger /dev/shm and memory limit"
        )


def _validate_object_stores(plan: Plan, layout: SlotLayout, resources: Resources) -> None:
    """Validates that the object store of the learner's node can hold all slots of all hosts at once."""
    each = layout.slot_bytes * plan.shape.num_slots
    for node in resources.nodes:
        wanted = each * plan.environments.nodes.count(node.name)
        if plan.replay is not None and node.name in plan.replay.nodes:
            wanted = each * plan.environments.replicas
        if node.object_store_bytes is not None and wanted > node.object_store_bytes:
            raise UserError(
                f"plan {plan.name}: fragment {plan.environments.name}: {plan.shape.num_slots} slots of each host take "
                f"{wanted:,} bytes of node {node.name}'s object store, which has {node.object_store_bytes:,}: use fewer "
                f"--run.num-envs, a shorter --run.rollout-length, or start Ray with a larger --object-store-memory"
            )


def validate_replay_memory(plan: Plan, replay: ReplayBytes, resources: Resources) -> None:
    """Rejects experience that the memory which is to keep it has no room for; on this machine, also room to save it.

    Raises:
        UserError: says how many bytes are wanted and free, and what makes them fewer.
    """
    fragment = plan.replay
    if fragment is None:
        return
    where = f"plan {plan.name}: fragment {fragment.name}"
    free, share, place = resources.host_memory_bytes, replay.held + SAVING_BYTES, "this machine's memory"
    hint = "use a smaller --agent.replay.capacity"
    node = next((node for node in resources.nodes if node.name in fragment.nodes), None)
    if node is not None and node.memory_bytes is not None:  # else a node of --cluster.address local: on this machine
        free, share, place = node.memory_bytes, replay.held, f"the memory of node {node.name}"
    if isinstance(fragment.placement, Devices) and resources.device_memory_bytes is not None:
        number = len(fragment.placement.indices)
        free, share, place = resources.device_memory_bytes, -(-replay.held // number), "each device's memory"
        hint += ", --replay.memory host, or more --learner.num-devices"
    if free is not None and share > free:
        raise UserError(f"{where} takes {share:,} bytes of {place}, of which {free:,} are free: {hint}")


def _validate_channel(plan: Plan, channel: Channel, names: list[str]) -> None:
    where = f"plan {plan.name}: channel {channel.source} -> {channel.target}"
    for end in (channel.source, channel.target):
        if end not in names:
            raise UserError(f"{where} has no fragment {end!r}: expected one of {names}")
    if channel.source == channel.target:
        raise UserError(f"{where} ends where it begins: give it two fragments")
    if channel.capacity < 1:
        raise UserError(f"{where} needs a capacity of at least 1: got {channel.capacity}")
    if channel.max_lag < 0:
        raise UserError(f"{where} needs a max_lag of at least 0: got {channel.max_lag}")
    if channel.when_full is WhenFull.DROP_OLDEST:
        _validate_drops(plan, channel, where)
    elif channel.kept:
        raise UserError(f"{where} keeps {channel.kept} of what it never drops: use WhenFull.DROP_OLDEST, or keep 0")


def _validate_drops(plan: Plan, channel: Channel, where: str) -> None:
    """Validates that only whole trajectories are dropped, and only if the newest parameters act."""
    if channel.carries is not Carries.TRAJECTORIES:
        raise UserError(f"{where} carries {channel.carries.value}, of which none may be dropped: {_BLOCK}")
    if not isinstance(plan.inference.placement, Devices) or not isinstance(plan.environments.placement, Processes):
        raise UserError(f"{where} drops its oldest, which needs environment processes and a server: {_BLOCK}")
    if plan.max_policy_lag < 2:
        raise UserError(
            f"{where} drops its oldest, which is not deterministic: expected --run.max-policy-lag 2 or more, got "
            f"{plan.max_policy_lag}"
        )
    gradients = plan.channel(Carries.GRADIENTS)
    if gradients is not None and not gradients.synchronous:
        raise UserError(f"{where} drops its oldest, but asynchronous replicas learn from all: {_BLOCK}")
    if channel.kept and (gradients is not None or len(plan.learners) > 1):
        raise UserError(
            f"{where} keeps trajectories, which needs one learner that applies its own gradients: got "
            f"{'a parameter server' if gradients is not None else f'{len(plan.learners)} learners'}; "
            f"use --learner.trajectory-buffer-size 0"
        )


def _validate_connections(plan: Plan) -> None:
    """Rejects fragments that no channel enters or leaves."""
    for fragment in plan.fragments:
        reads = [channel for channel in plan.channels if channel.target == fragment.name]
        writes = [channel for channel in plan.channels if channel.source == fragment.name]
        for channels, way in ((reads, "into"), (writes, "out of")):
            if not channels:
                raise UserError(f"plan {plan.name}: no channel leads {way} fragment {fragment.name}: add one")
    for carries in (Carries.TRAJECTORIES, Carries.PARAMETERS):
        if plan.channel(carries) is None:
            raise UserError(f"plan {plan.name}: no channel carries {carries.value}: add one")


def _validate_fragment(plan: Plan, fragment: Fragment, resources: Resources) -> None:
    where = f"plan {plan.name}: fragment {fragment.name}"
    if fragment.replicas < 1:
        raise UserError(f"{where} needs at least 1 replica: got {fragment.replicas}")
    if fragment.nodes:
        _validate_nodes(where, fragment, resources)
        return
    placement = fragment.placement
    if isinstance(placement, Processes):
        if placement.count < 1:
            raise UserError(f"{where} needs at least 1 process a replica: got {placement.count}")
        if max(placement.cores, default=0) >= resources.num_cores:
            raise UserError(
                f"{where} wants core {max(placement.cores)}, but this process may run on {resources.num_cores}: "
                f"use fewer --pool.num-workers"
            )
    if not isinstance(placement, Devices):
        return
    available = resources.devices_of(placement.platform)
    if not placement.indices or max(placement.indices) >= available or min(placement.indices) < 0:
        platform = placement.platform or resources.platform
        if platform == "cpu" and not available:
            raise UserError(
                f"{where} is on the CPU, which JAX_PLATFORMS excludes: set JAX_PLATFORMS=cuda,cpu (or tpu,cpu), or unset it"
            )
        raise UserError(
            f"{where} wants device {max(placement.indices, default=0)}, but there are {available} {platform} devices: "
            f"use --learner.num-devices {available} or less"
            + (" (or split the host: --machine.num-cpu-devices N)" if platform == "cpu" else "")
        )
    if len(placement.indices) > fragment.replicas and len(placement.indices) % fragment.replicas:
        raise UserError(
            f"{where}: {len(placement.indices)} devices do not divide over {fragment.replicas} replicas: "
            f"use {nearest_multiple(len(placement.indices), fragment.replicas)} devices"
        )


def _validate_nodes(where: str, fragment: Fragment, resources: Resources) -> None:
    """Validates the nodes of a fragment. The cluster assigns their cores and devices."""
    known = [node.name for node in resources.nodes]
    unknown = sorted(set(fragment.nodes) - set(known))
    if unknown:
        raise UserError(
            f"{where} is on {', '.join(unknown)}, which the cluster does not have: expected some of {known}"
        )
    if len(fragment.nodes) != fragment.replicas:
        raise UserError(
            f"{where} needs a node for each of {fragment.replicas} replicas: got {len(fragment.nodes)} of them"
        )
    if fragment.kind not in (FragmentKind.ENVIRONMENT, FragmentKind.INFERENCE, FragmentKind.REPLAY):
        raise UserError(f"{where} cannot be on other nodes: only environments, acting for them and replay can")


def _validate_rows(plan: Plan) -> None:
    rows = plan.num_rows
    for learner in plan.learners:
        count = len(learner.placement.indices) if isinstance(learner.placement, Devices) else 1
        if rows % count:
            raise UserError(
                f"plan {plan.name}: fragment {learner.name}: {rows} rows do not divide over {count} devices: "
                f"use --run.num-envs {nearest_multiple(rows, count)}"
            )
    inference, gradients = plan.inference, plan.channel(Carries.GRADIENTS)
    if gradients is not None and not gradients.synchronous:
        served = isinstance(inference.placement, Devices) and isinstance(plan.environments.placement, Processes)
        learner = plan.learner
        if not served or learner.replicas != plan.environments.replicas:
            raise UserError(
                f"plan {plan.name}: fragment {learner.name}: {learner.replicas} asynchronous replicas need as many replicas "
                f"of environment processes with a server, got {plan.environments.replicas} of {plan.environments.name}"
            )
    if plan.calls_servers:
        _validate_servers(plan)
    elif inference.replicas != plan.environments.replicas:
        raise UserError(
            f"plan {plan.name}: fragment {inference.name}: {inference.replicas} replicas cannot serve "
            f"{plan.environments.replicas} replicas of {plan.environments.name}: give them the same number"
        )


def _validate_servers(plan: Plan) -> None:
    inference, lanes = plan.inference, plan.shape.num_lanes * plan.environments.replicas
    if not inference.nodes or lanes % inference.replicas:
        raise UserError(
            f"plan {plan.name}: fragment {inference.name}: {inference.replicas} servers that are called need nodes of a cluster, "
            f"and a number that divides {lanes} lanes: got nodes {inference.nodes}"
        )


def _validate_groups(plan: Plan) -> None:
    """Rejects learners of several policies that do not fit together. Whether the agent has these policies is not known here."""
    for fragment in plan.fragments:
        if fragment.group and fragment.kind is not FragmentKind.LEARNER:
            raise UserError(
                f"plan {plan.name}: fragment {fragment.name} is {fragment.kind.value} for all policies, but names the group "
                f"{fragment.group!r}: only learners have one"
            )
    learners = plan.learners
    if not learners or (len(learners) == 1 and learners[0].group in ("", EACH_GROUP)):
        plan.fragment(FragmentKind.LEARNER)
        return
    for learner in learners:
        _validate_learner(plan, learner)
    _validate_apart(plan)
    _validate_published_together(plan)


def _validate_learner(plan: Plan, learner: Fragment) -> None:
    where = f"plan {plan.name}: fragment {learner.name}"
    if learner.group in ("", EACH_GROUP):
        raise UserError(
            f"plan {plan.name}: expected one fragment of kind learner, got {len(plan.learners)}, of which {learner.name} "
            f"names no policy: give each the group that it learns"
        )
    if not isinstance(learner.placement, Devices):
        raise UserError(f"{where} learns policy {learner.group!r}, which needs devices: got {learner.placement}")
    if learner.replicas != 1:
        raise UserError(
            f"{where} learns policy {learner.group!r} over all of its devices: expected 1 replica, got {learner.replicas}"
        )
    if plan.parameter_server is not None or plan.channel(Carries.GRADIENTS) is not None:
        raise UserError(
            f"{where} learns policy {learner.group!r} alone, but the plan has a parameter server, which learns all of them: "
            f"use one learner without a group"
        )
    if isinstance(plan.environments.placement, Devices):
        raise UserError(
            f"{where} learns policy {learner.group!r} alone, but {plan.environments.name} are in one program with the learner "
            f"of all policies: place them in processes, or use one learner without a group"
        )


def _validate_apart(plan: Plan) -> None:
    """Rejects a policy with two learners, or a device with two of them."""
    learner_of: dict[str, str] = {}
    used_by: dict[tuple[str, int], str] = {}
    for learner in plan.learners:
        where = f"plan {plan.name}: fragment {learner.name}"
        if learner.group in learner_of:
            raise UserError(
                f"{where} learns policy {learner.group!r}, as {learner_of[learner.group]} does: a policy has one learner"
            )
        learner_of[learner.group] = learner.name
        if not isinstance(learner.placement, Devices):
            continue
        for index in learner.placement.indices:
            device = (learner.placement.platform, index)
            if device in used_by:
                raise UserError(
                    f"{where} wants device {index}, on which {used_by[device]} is: give every policy's learner devices of its "
                    f"own, or all policies one learner without a group"
                )
            used_by[device] = learner.name


def _validate_published_together(plan: Plan) -> None:
    """Rejects policies that do not read the same trajectories or do not publish one version together."""
    first, kinds = plan.learners[0], ("channel of trajectories into it", "channel of parameters out of it")
    for learner in plan.learners:
        where = f"plan {plan.name}: fragment {learner.name}"
        for mine, theirs, what in zip(_ends(plan, learner), _ends(plan, first), kinds, strict=True):
            if mine is None or theirs is None:
                raise UserError(f"{where} has no {what}: every policy's learner needs both")
            if _rules(mine) != _rules(theirs):
                raise UserError(
                    f"{where}: its channel {mine.source} -> {mine.target} is not like that of {first.name}: policies learn from "
                    f"the same trajectories and are published together; expected (capacity, when full, lag) {_rules(theirs)}, "
                    f"got {_rules(mine)}"
                )


def _ends(plan: Plan, learner: Fragment) -> tuple[Channel | None, Channel | None]:
    """Returns the channels of the learner's trajectories and of its parameters."""
    into = (one for one in plan.channels if one.target == learner.name and one.carries is Carries.TRAJECTORIES)
    out = (one for one in plan.channels if one.source == learner.name and one.carries is Carries.PARAMETERS)
    return next(into, None), next(out, None)


def _rules(channel: Channel) -> tuple[int, str, int]:
    return channel.capacity, channel.when_full.value, channel.max_lag
