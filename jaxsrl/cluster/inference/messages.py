"""Requests of environment hosts to inference servers on other nodes, and their replies: one flat buffer each way.

Both ends make the same layouts from the layout of a host's slots. Nothing is pickled but the buffer's own few bytes of header.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from envpool_bridge.shm.layout import SlotLayout, field_name
from envpool_bridge.shm.packed_arrays import ParamsLayout, params_layout, view_leaves
from envpool_bridge.shm.slots import ActRows, blank_window
from envpool_bridge.spec.specs import SpecTree
from envpool_bridge.spec.tree import Tree, items, leaves, map_leaves, unflatten, write

_HEADER = ((4,), "int64")

Shapes = Sequence[tuple[tuple[int, ...], str]]


@dataclasses.dataclass(frozen=True)
class Request:
    """One lane's rows at one step.

    Attributes:
        life: of the client. A larger one for the same lane is of a client that replaced this one.
        lane: numbered over all hosts.
        step: of the run.
        observation: [R, ...] a leaf, as `ActRows` has it; read-only.
        is_first: likewise.
        agent_state: [R, ...] a leaf, what the policy remembers before this step; None where the server knows that.
    """

    life: int
    lane: int
    step: int
    observation: Tree
    is_first: np.ndarray
    agent_state: Tree | None


@dataclasses.dataclass(frozen=True)
class Answer:
    """Reply to a request.

    Attributes:
        version: of the parameters.
        step: of the request.
        action: [R, ...] a leaf.
        extras: [R, ...] each.
        agent_state: [R, ...] a leaf, after the step; None unless that ends a slot.
    """

    version: int
    step: int
    action: Tree
    extras: Mapping[str, np.ndarray]
    agent_state: Tree | None


class ActingMessages:
    """Packs and reads requests and answers of lanes of one size. Any thread."""

    def __init__(self, layout: SlotLayout) -> None:
        spec, rows = layout.spec, layout.shape.rows_per_lane
        self._spec, self._layout, self._rows = spec, layout, rows
        self._window, is_first = blank_window(spec, rows)
        self._extras = sorted(field.name for field in layout.fields if field.name.startswith("extras/"))
        asked: Shapes = [_HEADER, *_shapes([*leaves(self._window), is_first])]
        answer: Shapes = [_HEADER, *self._of_step("action", spec.action), *[self._field(name) for name in self._extras]]
        state: Shapes = [((rows, *leaf.shape), leaf.dtype) for leaf in leaves(layout.agent_state)]
        # By whether the agent state comes last.
        self._requests = {False: params_layout(asked), True: params_layout([*asked, *state])}
        self._answers = {False: params_layout(answer), True: params_layout([*answer, *state])}

    @property
    def remembers(self) -> bool:
        """Returns whether rows have a state."""
        return bool(leaves(self._layout.agent_state))

    @property
    def request_bytes(self) -> int:
        return self._requests[False].block_bytes

    @property
    def answer_bytes(self) -> int:
        return self._answers[False].block_bytes

    def pack_request(self, life: int, lane: int, step: int, rows: ActRows, state: Tree | None) -> np.ndarray:
        """Returns a request, [num_bytes] uint8, with copies of the inputs of `rows`, which are of that lane and step."""
        with_state = state is not None and self.remembers
        block, (header, *rest) = _new(self._requests[with_state])
        header[:] = (life, lane, step, with_state)
        observed = [*leaves(rows.observation), rows.is_first]
        for target, values in zip(rest, observed, strict=False):
            target[...] = values
        if with_state:
            write(self._state(rest[len(observed) :]), state)
        return block

    def read_request(self, block: np.ndarray) -> Request:
        """Returns the request, as views of its bytes."""
        header = _header(block)
        _, *rest = view_leaves(self._requests[bool(header[3])], block)
        observed = len(leaves(self._window))
        observation = unflatten(self._window, rest[:observed])
        state = self._state(rest[observed + 1 :]) if header[3] else None
        return Request(int(header[0]), int(header[1]), int(header[2]), observation, rest[observed], state)

    def pack_answer(
        self, version: int, step: int, action: Tree, extras: Mapping[str, np.ndarray], state: Tree | None
    ) -> np.ndarray:
        """Returns an answer, [num_bytes] uint8, with copies of the actions and extras."""
        with_state = state is not None and self.remembers
        block, (header, *rest) = _new(self._answers[with_state])
        header[:] = (version, step, with_state, 0)
        of_action = len(leaves(self._spec.action))
        write(unflatten(self._spec.action, rest[:of_action]), action)
        for name, target in zip(self._extras, rest[of_action:], strict=False):
            target[...] = extras[name.removeprefix("extras/")]
        if with_state:
            write(self._state(rest[of_action + len(self._extras) :]), state)
        return block

    def read_answer(self, block: np.ndarray) -> Answer:
        """Returns the answer, as views of its bytes."""
        header = _header(block)
        _, *rest = view_leaves(self._answers[bool(header[2])], block)
        of_action = len(leaves(self._spec.action))
        names = [name.removeprefix("extras/") for name in self._extras]
        extras = dict(zip(names, rest[of_action : of_action + len(names)], strict=True))
        state = self._state(rest[of_action + len(names) :]) if header[2] else None
        return Answer(int(header[0]), int(header[1]), unflatten(self._spec.action, rest[:of_action]), extras, state)

    def blank_state(self) -> Tree:
        """Returns the agent state of a lane's rows as zeros, [R, ...] a leaf."""
        return map_leaves(lambda leaf: np.zeros((self._rows, *leaf.shape), leaf.dtype), self._layout.agent_state)

    def _state(self, views: Sequence[np.ndarray]) -> Tree:
        return unflatten(self._layout.agent_state, views)

    def _of_step(self, name: str, tree: SpecTree) -> list[tuple[tuple[int, ...], str]]:
        return [self._field(field_name(name, path)) for path, _ in items(tree)]

    def _field(self, name: str) -> tuple[tuple[int, ...], str]:
        """Returns a slot's field, [T, B, ...], as that of a lane at one step, [R, ...]."""
        (field,) = [field for field in self._layout.fields if field.name == name]
        return (self._rows, *field.shape[2:]), field.dtype


def _shapes(arrays: Sequence[np.ndarray]) -> Shapes:
    return [(array.shape, array.dtype.name) for array in arrays]


def _new(layout: ParamsLayout) -> tuple[np.ndarray, list[np.ndarray]]:
    block = np.empty(layout.block_bytes, np.uint8)
    return block, view_leaves(layout, block)


def _header(block: np.ndarray) -> np.ndarray:
    shape, dtype = _HEADER
    return block[: math.prod(shape) * np.dtype(dtype).itemsize].view(dtype)
