"""Plan: which fragments a run has, where they are, and what flows between them; checked before anything starts."""

import dataclasses
import enum
from typing import Any

from envpool_bridge.errors import UserError
from envpool_bridge.layout import PoolShape
from jaxsrl.dataflow.fragment import Channel, Devices, Fragment, FragmentKind, Processes, WhenFull
from jaxsrl.dataflow.resources import Resources


@dataclasses.dataclass(frozen=True)
class Plan:
    """A run, placed.

    Attributes:
        policy: the distribution policy that made it.
        fragments: parts of the dataflow.
        channels: edges between them.
        shape: how rows are divided among workers and lanes.
        max_policy_lag: updates that the acting policy may be behind.
        merge_lanes: whether inference joins lanes that are ready together.
    """

    policy: str
    fragments: tuple[Fragment, ...]
    channels: tuple[Channel, ...]
    shape: PoolShape
    max_policy_lag: int
    merge_lanes: bool = False

    def fragment(self, kind: FragmentKind) -> Fragment:
        """The one fragment of this kind."""
        return next(fragment for fragment in self.fragments if fragment.kind is kind)

    @property
    def in_process(self) -> bool:
        """Whether environments run in the main process."""
        return not isinstance(self.fragment(FragmentKind.ENVIRONMENT).placement, Processes)

    @property
    def learner_devices(self) -> tuple[int, ...]:
        """Devices of the learner."""
        placement = self.fragment(FragmentKind.LEARNER).placement
        return placement.indices if isinstance(placement, Devices) else (0,)

    @property
    def inference_device(self) -> int:
        """Device of the inference server."""
        placement = self.fragment(FragmentKind.INFERENCE).placement
        return placement.indices[0] if isinstance(placement, Devices) else 0


def validate_plan(plan: Plan, resources: Resources) -> None:
    """Refuses a plan that cannot run here.

    Raises:
        UserError: names the fragment or channel, the number at fault, and what to change.
    """
    names = [fragment.name for fragment in plan.fragments]
    if len(set(names)) != len(names):
        raise UserError(f"plan {plan.policy}: fragment names must differ: got {names}")
    for channel in plan.channels:
        for end in (channel.source, channel.target):
            if end not in names:
                raise UserError(
                    f"plan {plan.policy}: channel {channel.source} -> {channel.target} has no fragment {end!r}: "
                    f"expected one of {names}"
                )
        if channel.capacity < 1:
            raise UserError(
                f"plan {plan.policy}: channel {channel.source} -> {channel.target} needs a capacity of at least 1: "
                f"got {channel.capacity}"
            )
        if channel.when_full is WhenFull.DROP_OLDEST:
            raise UserError(
                f"plan {plan.policy}: channel {channel.source} -> {channel.target} drops its oldest, which is not built "
                f"yet: use WhenFull.BLOCK"
            )
    for fragment in plan.fragments:
        _validate_fragment(plan, fragment, resources)
    if plan.shape.num_slots < plan.max_policy_lag + 1:
        raise UserError(
            f"plan {plan.policy}: max_policy_lag {plan.max_policy_lag} needs at least {plan.max_policy_lag + 1} slots: "
            f"got {plan.shape.num_slots}"
        )


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """The plan as JSON data, for people and for `plan.json`."""

    def convert(value: Any) -> Any:
        if isinstance(value, enum.Enum):
            return value.value
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {field.name: convert(getattr(value, field.name)) for field in dataclasses.fields(value)}
            is_placement = type(value).__name__ in {"InProcess", "Processes", "Devices"}
            return {"kind": type(value).__name__, **fields} if is_placement else fields
        if isinstance(value, tuple):
            return [convert(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
        return value

    return convert(plan)


def _validate_fragment(plan: Plan, fragment: Fragment, resources: Resources) -> None:
    where = f"plan {plan.policy}: fragment {fragment.name}"
    if fragment.replicas < 1:
        raise UserError(f"{where} needs at least 1 replica: got {fragment.replicas}")
    if not isinstance(fragment.placement, Devices):
        return
    devices = fragment.placement.indices
    if not devices or max(devices) >= resources.num_devices:
        raise UserError(
            f"{where} wants device {max(devices, default=0)}, but there are {resources.num_devices} "
            f"{resources.platform} devices: use --run.num-devices {resources.num_devices} or less"
        )
    rows = plan.shape.num_rows
    if fragment.kind is FragmentKind.LEARNER and rows % len(devices):
        raise UserError(
            f"{where}: {rows} rows do not divide over {len(devices)} devices: "
            f"use --run.num-envs {nearest_multiple(rows, len(devices))}"
        )


def nearest_multiple(number: int, of: int) -> int:
    """The multiple of `of` (at least one of it) that is nearest to `number`."""
    return max(1, round(number / of)) * of
