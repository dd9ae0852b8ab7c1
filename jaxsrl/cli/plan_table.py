"""Tables of a plan on the terminal."""

from rich.table import Table

from jaxsrl.plan.cost.channel_bytes import bytes_between_nodes
from jaxsrl.plan.drawing.text import format_lag, format_placement, format_slots
from jaxsrl.plan.passes.learner_processes import shares_of
from jaxsrl.plan.plan import Plan
from jaxsrl.planner.plan_experiment import PlannedExperiment
from jaxsrl.terminal.format import format_bytes, format_ranges
from jaxsrl.terminal.tables import make_console, make_table

_MIN_WIDTH = 130


def print_plan(planned: PlannedExperiment) -> None:
    """Prints fragments, channels and memory of the plan."""
    plan, resources = planned.plan, planned.resources
    console = make_console(_MIN_WIDTH)
    shape = plan.shape
    devices = f"{resources.num_devices} {resources.platform} device{'s' if resources.num_devices > 1 else ''}"
    collected = f"{plan.num_rows} rows, trajectories of {shape.rollout_length} steps, lag {plan.max_policy_lag}"
    console.print(
        f"[bold]plan {plan.name}[/bold] on {resources.num_cores} cores and {devices}: "
        f"{'no environments' if plan.is_offline else collected}",
        highlight=False,
    )
    console.print(_fragments(plan, resources.platform))
    if planned.processes > 1:
        console.print(_processes(planned))
    console.print(_channels(planned))
    if plan.is_offline:
        return
    console.print(format_slots(plan, planned.sizes), highlight=False)
    if plan.environments.nodes:
        sent = bytes_between_nodes(plan, planned.sizes)
        acting = f", {format_bytes(sent.acting)} to and from inference servers" if sent.acting else ""
        if sent.sampling:
            acting += f", {format_bytes(sent.sampling)} between replay and the learner"
        console.print(
            f"between nodes, an update: {format_bytes(sent.trajectories)} of trajectories to "
            f"{'replay' if sent.sampling else 'the learner'}, "
            f"{format_bytes(sent.parameters)} of parameters from the learner{acting}: {sent.env_step:.3g} bytes an environment "
            f"step",
            highlight=False,
        )
    if plan.replay is not None:
        held = planned.sizes.replay
        console.print(f"experience kept for replay: {format_bytes(held)} ({held:,} bytes)", highlight=False)


def _fragments(plan: Plan, platform: str) -> Table:
    table = make_table(("fragment", "kind", "replicas", "where"), ("replicas",), "fragments")
    for fragment in plan.fragments:
        where = format_placement(fragment, platform)
        table.add_row(fragment.name, fragment.kind.value, str(fragment.replicas), where)
    return table


def _processes(planned: PlannedExperiment) -> Table:
    hosts, servers = bool(planned.plan.environments.nodes), planned.plan.calls_servers
    columns = ["process", "devices", "rows", *(["environment hosts", "on"] if hosts else ["replicas"])]
    columns += ["inference servers", "on"] if servers else []
    table = make_table(columns, ("process",), "learner processes")
    for share in shares_of(planned.plan, planned.processes):
        cells = (format_ranges(share.devices), f"{share.rows[0]}-{share.rows[1]}", format_ranges(share.replicas))
        on = [", ".join(share.nodes)] if hosts else []
        served = [format_ranges(share.servers), ", ".join(share.server_nodes)] if servers else []
        table.add_row(str(share.process), *cells, *on, *served)
    return table


def _channels(planned: PlannedExperiment) -> Table:
    columns = ("channel", "carries", "transport", "capacity", "an item", "in all", "lag", "source waits", "full")
    table = make_table(columns, ("capacity", "an item", "in all"), "channels")
    for channel, size in zip(planned.plan.channels, planned.sizes.channels, strict=True):
        table.add_row(
            f"{channel.source} -> {channel.target}",
            channel.carries.value,
            channel.transport.value,
            str(channel.capacity),
            format_bytes(size.item),
            format_bytes(size.total),
            format_lag(channel).removeprefix("lag ") or "-",
            "yes" if channel.synchronous else "no",
            channel.when_full.value + (f", keeps {channel.kept}" if channel.kept else ""),
        )
    return table
