"""Plan: which fragments a run has, where they are, and what flows between them. Data only; `validate.py` checks it."""

import dataclasses
import enum
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
    """A run, placed.

    Attributes:
        policy: the distribution policy that made it.
        fragments: parts of the dataflow.
        channels: edges between them.
        shape: how the rows of one replica of the environments are divided among workers and lanes.
        merge_lanes: whether inference joins lanes that are ready together.
    """

    policy: str
    fragments: tuple[Fragment, ...]
    channels: tuple[Channel, ...]
    shape: PoolShape
    merge_lanes: bool = False

    def fragment(self, kind: FragmentKind) -> Fragment:
        """The one fragment of this kind.

        Raises:
            UserError: there is none, or more than one.
        """
        found = [fragment for fragment in self.fragments if fragment.kind is kind]
        if len(found) != 1:
            raise UserError(f"plan {self.policy}: expected one fragment of kind {kind.value}, got {len(found)}")
        return found[0]

    def channel(self, carries: Carries) -> Channel | None:
        """The first channel that carries this; None if there is none."""
        return next((channel for channel in self.channels if channel.carries is carries), None)

    @property
    def environments(self) -> Fragment:
        """The environments."""
        return self.fragment(FragmentKind.ENVIRONMENT)

    @property
    def inference(self) -> Fragment:
        """Policy inference."""
        return self.fragment(FragmentKind.INFERENCE)

    @property
    def learner(self) -> Fragment:
        """The learner of all policies; refuses a plan with several, see `learners`."""
        return self.fragment(FragmentKind.LEARNER)

    @property
    def learners(self) -> tuple[Fragment, ...]:
        """Every learner: one, or one for each policy that learns (`Fragment.group`)."""
        return tuple(fragment for fragment in self.fragments if fragment.kind is FragmentKind.LEARNER)

    @property
    def replay(self) -> Fragment | None:
        """Where experience is kept for learning from it again; None where each trajectory is learned from once."""
        return next((fragment for fragment in self.fragments if fragment.kind is FragmentKind.REPLAY), None)

    @property
    def parameter_server(self) -> Fragment | None:
        """The parameter server; None where the learner applies its own gradients."""
        return next((fragment for fragment in self.fragments if fragment.kind is FragmentKind.PARAMETER_SERVER), None)

    @property
    def calls_servers(self) -> bool:
        """Whether environments ask servers on other nodes for actions, call by call."""
        channel = self.channel(Carries.OBSERVATIONS)
        return channel is not None and channel.transport is Transport.CALLS

    @property
    def num_rows(self) -> int:
        """B, environments in all."""
        return self.shape.num_rows * self.environments.replicas

    @property
    def max_policy_lag(self) -> int:
        """Updates that the acting policy may be behind."""
        channel = self.channel(Carries.PARAMETERS)
        return channel.max_lag if channel is not None else 0


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """The plan as JSON data, for people and for `plan.json`; `plan_from_json` is its inverse."""

    def convert(value: Any) -> Any:
        if isinstance(value, enum.Enum):
            return value.value
        if isinstance(value, InProcess | Processes | Devices):
            return {"kind": type(value).__name__, **{name: convert(item) for name, item in vars(value).items()}}
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            found = {field.name: convert(getattr(value, field.name)) for field in dataclasses.fields(value)}
            if not found.get("group", True):
                del found["group"]  # most fragments are of all policies
            if not found.get("kept", True):
                del found["kept"], found["reuses"]
            if not found.get("nodes", True):
                del found["nodes"]  # and on one machine
            return found
        if isinstance(value, tuple):
            return [convert(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
        return value

    return convert(plan)


def plan_from_json(data: dict[str, Any]) -> Plan:
    """The plan that `plan_to_json` wrote."""
    fragments = [
        Fragment(
            one["name"],
            FragmentKind(one["kind"]),
            one["replicas"],
            _placement(one["placement"]),
            one.get("group", ""),
            tuple(one.get("nodes", ())),
        )
        for one in data["fragments"]
    ]
    channels = [
        Channel(
            one["source"],
            one["target"],
            Carries(one["carries"]),
            Transport(one["transport"]),
            one["capacity"],
            WhenFull(one["when_full"]),
            one["max_lag"],
            one["synchronous"],
            one.get("kept", 0),
            one.get("reuses", 1),
        )
        for one in data["channels"]
    ]
    shape = PoolShape(**data["shape"])
    return Plan(data["policy"], tuple(fragments), tuple(channels), shape, data["merge_lanes"])


def _placement(data: dict[str, Any]) -> Placement:
    match data["kind"]:
        case "Processes":
            return Processes(data["count"], tuple(data["cores"]))
        case "Devices":
            return Devices(tuple(data["indices"]), data["platform"])
        case _:
            return InProcess()


def nearest_multiple(number: int, of: int) -> int:
    """The multiple of `of` (at least one of it) that is nearest to `number`."""
    return max(1, round(number / of)) * of
