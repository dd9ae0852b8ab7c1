"""Plan: fragments of a run, their placement and their channels, as data. `validate.py` checks it."""

import dataclasses
import enum
from collections.abc import Collection, Sequence
from typing import Any

from envpool_bridge.errors import UserError
from envpool_bridge.shm.layout import PoolShape
from jaxsrl.plan.fragment import (
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


@dataclasses.dataclass(frozen=True)
class Plan:
    """Placement of one run.

    Attributes:
        name: Name of the plan, e.g. "decoupled".
        fragments: parts of the dataflow.
        channels: edges between them.
        shape: division of one replica's environments among workers and lanes.
        merge_lanes: whether inference combines lanes that are ready together.
    """

    name: str
    fragments: tuple[Fragment, ...]
    channels: tuple[Channel, ...]
    shape: PoolShape
    merge_lanes: bool = False

    def fragment(self, kind: FragmentKind) -> Fragment:
        """Returns the only fragment of a kind.

        Raises:
            UserError: If the plan has none, or several.
        """
        fragments = [fragment for fragment in self.fragments if fragment.kind is kind]
        if len(fragments) != 1:
            raise UserError(f"plan {self.name}: expected one fragment of kind {kind.value}, got {len(fragments)}")
        return fragments[0]

    def channel(self, carries: Carries) -> Channel | None:
        """Returns the first channel with this content; None without one."""
        return next((channel for channel in self.channels if channel.carries is carries), None)

    @property
    def environments(self) -> Fragment:
        """Returns the environment fragment."""
        return self.fragment(FragmentKind.ENVIRONMENT)

    @property
    def inference(self) -> Fragment:
        """Returns the inference fragment."""
        return self.fragment(FragmentKind.INFERENCE)

    @property
    def learner(self) -> Fragment:
        """Returns the learner of all policies. Raises an error for a plan with several; see `learners`."""
        return self.fragment(FragmentKind.LEARNER)

    @property
    def learners(self) -> tuple[Fragment, ...]:
        """Returns all learners: one, or one for each learning policy (`Fragment.group`)."""
        return tuple(fragment for fragment in self.fragments if fragment.kind is FragmentKind.LEARNER)

    @property
    def replay(self) -> Fragment | None:
        """Returns the replay fragment; None if each trajectory is used once."""
        return next((fragment for fragment in self.fragments if fragment.kind is FragmentKind.REPLAY), None)

    @property
    def prepare(self) -> Fragment | None:
        """Returns the fragment that transforms samples; None if the learner does it."""
        return next((fragment for fragment in self.fragments if fragment.kind is FragmentKind.PREPARE), None)

    @property
    def dataset(self) -> Fragment | None:
        """Returns the fragment of recorded steps; None if the learner has none."""
        return next((fragment for fragment in self.fragments if fragment.kind is FragmentKind.DATASET), None)

    @property
    def is_offline(self) -> bool:
        """Returns whether there are no environments: all experience is in a dataset."""
        return all(fragment.kind is not FragmentKind.ENVIRONMENT for fragment in self.fragments)

    @property
    def parameter_server(self) -> Fragment | None:
        """Returns the parameter server; None if the learner applies its own gradients."""
        return next((fragment for fragment in self.fragments if fragment.kind is FragmentKind.PARAMETER_SERVER), None)

    def with_channels(self, contents: Collection[Carries], **changes: Any) -> "Plan":
        """Returns the plan with changes of the channels that carry one of these contents."""
        channels = tuple(
            dataclasses.replace(one, **changes) if one.carries in contents else one for one in self.channels
        )
        return dataclasses.replace(self, channels=channels)

    def with_nodes(self, kinds: Collection[FragmentKind], nodes: Sequence[str], **changes: Any) -> "Plan":
        """Returns the plan with its fragments of these kinds on these nodes, and other changes of them."""
        fragments = tuple(
            dataclasses.replace(one, nodes=tuple(nodes), **changes) if one.kind in kinds else one
            for one in self.fragments
        )
        return dataclasses.replace(self, fragments=fragments)

    @property
    def calls_servers(self) -> bool:
        """Returns whether inference servers on other nodes choose the actions."""
        channel = self.channel(Carries.OBSERVATIONS)
        return channel is not None and channel.transport is Transport.CALLS

    @property
    def num_rows(self) -> int:
        """Returns B, the number of rows of all replicas."""
        return self.shape.num_rows * (1 if self.is_offline else self.environments.replicas)

    @property
    def max_policy_lag(self) -> int:
        """Returns the number of updates by which the acting policy may be behind."""
        channel = self.channel(Carries.PARAMETERS)
        return channel.max_lag if channel is not None else 0


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """Returns the plan as JSON data for `plan.json`; `plan_from_json` is the inverse."""

    def convert(value: Any) -> Any:
        if isinstance(value, enum.Enum):
            return value.value
        if isinstance(value, InProcess | Processes | Devices):
            return {"kind": type(value).__name__, **{name: convert(item) for name, item in vars(value).items()}}
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {field.name: convert(getattr(value, field.name)) for field in dataclasses.fields(value)}
            if not fields.get("group", True):
                del fields["group"]  # of most fragments: all policies
            if not fields.get("kept", True):
                del fields["kept"], fields["reuses"]
            if not fields.get("nodes", True):
                del fields["nodes"]  # one machine
            return fields
        if isinstance(value, tuple):
            return [convert(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
        return value

    return convert(plan)


def plan_from_json(data: dict[str, Any]) -> Plan:
    """Returns the plan that `plan_to_json` wrote. Fields of fragments and channels that a later version added are ignored."""
    fragments = tuple(_fragment_from_json(**_known_fields(Fragment, one)) for one in data["fragments"])
    channels = tuple(_channel_from_json(**_known_fields(Channel, one)) for one in data["channels"])
    return Plan(data["name"], fragments, channels, PoolShape(**data["shape"]), data["merge_lanes"])


def _known_fields(kind: type[Fragment | Channel], data: dict[str, Any]) -> dict[str, Any]:
    return {field.name: data[field.name] for field in dataclasses.fields(kind) if field.name in data}


def _fragment_from_json(kind: str, placement: dict[str, Any], nodes: Sequence[str] = (), **others: Any) -> Fragment:
    return Fragment(kind=FragmentKind(kind), placement=_placement(placement), nodes=tuple(nodes), **others)


def _placement(data: dict[str, Any]) -> Placement:
    match data["kind"]:
        case "Processes":
            return Processes(data["count"], tuple(data["cores"]))
        case "Devices":
            return Devices(tuple(data["indices"]), data["platform"])
        case _:
            return InProcess()


def _channel_from_json(carries: str, transport: str, when_full: str, **others: Any) -> Channel:
    return Channel(carries=Carries(carries), transport=Transport(transport), when_full=WhenFull(when_full), **others)


def nearest_multiple(number: int, of: int) -> int:
    """Returns the positive multiple of `of` nearest to `number`."""
    return max(1, round(number / of)) * of
