"""Requests of environment hosts to inference servers on other nodes, and their replies: one flat buffer each way.

Both ends make the same layouts from the layout of a host's slots. Nothing is pickled but the buffer's own few bytes of header.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from envpool_bridge.shm.layout import SlotLayout
from envpool_bridge.shm.packed_arrays import ParamsLayout, params_layout, view_leaves
from envpool_bridge.shm.slots import ActRows, blank_window
from envpool_bridge.spec.specs import zeros_of
from envpool_bridge.spec.tree import Tree, leaves, map_leaves, unflatten
from jaxsrl.collect.inference import batching

_NUM_HEADER = 4
_HEADER_BYTES = 8 * _NUM_HEADER


@dataclasses.dataclass(frozen=True)
class Request(batching.Request):
    """One lane's rows at one step; lanes are numbered over all hosts.

    Attributes:
        life: Life of the client. A larger one for the same lane is of a client that replaced this one.
        observation: [R, ...] a leaf, as `ActRows` has it; read-only.
        is_first: [R] bools, whether each observation is the first of an episode.
        agent_state: [R, ...] a leaf, what the policy remembers before this step; None where the server knows that.
    """

    life: int
    observation: Tree
    is_first: np.ndarray
    agent_state: Tree | None


@dataclasses.dataclass(frozen=True)
class Answer:
    """Reply to a request.

    Attributes:
        version: Version of the parameters.
        step: Step of the request.
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
    """Packs and reads requests and answers of lanes of one size. Any thread.

    Attributes:
        remembers: whether rows have a state.
        request_bytes: Size of a request without a state.
        answer_bytes: Size of an answer without a state.
    """

    def __init__(self, layout: SlotLayout) -> None:
        rows = layout.shape.rows_per_lane
        # A slot's field is [T, B, ...]; that of a lane at one step is [R, ...].
        extras = {
            field.name.removeprefix("extras/"): np.zeros((rows, *field.shape[2:]), field.dtype)
            for field in layout.fields
            if field.name.startswith("extras/")
        }
        self._extras = tuple(extras)
        self._blank_state = zeros_of(layout.agent_state, (rows,))
        self.remembers = bool(leaves(self._blank_state))
        self._requests = _Format(blank_window(layout.spec, rows), self._blank_state)
        self._answers = _Format((zeros_of(layout.spec.action, (rows,)), extras), self._blank_state)
        self.request_bytes, self.answer_bytes = self._requests.num_bytes, self._answers.num_bytes

    def pack_request(self, life: int, lane: int, step: int, rows: ActRows, state: Tree | None) -> np.ndarray:
        """Returns a request, [num_bytes] uint8, with copies of the inputs of `rows`, which are of that lane and step."""
        return self._requests.pack((lane, step, life), (rows.observation, rows.is_first), state)

    def read_request(self, block: np.ndarray) -> Request:
        """Returns the request, as views of its bytes."""
        (lane, step, life), (observation, is_first), state = self._requests.read(block)
        return Request(lane, step, life, observation, is_first, state)

    def pack_answer(
        self, version: int, step: int, action: Tree, extras: Mapping[str, np.ndarray], state: Tree | None
    ) -> np.ndarray:
        """Returns an answer, [num_bytes] uint8, with copies of the actions and of the extras that slots have."""
        in_slots = {name: extras[name] for name in self._extras}
        return self._answers.pack((version, step, 0), (action, in_slots), state)

    def read_answer(self, block: np.ndarray) -> Answer:
        """Returns the answer, as views of its bytes."""
        (version, step, _), (action, extras), state = self._answers.read(block)
        return Answer(version, step, action, extras, state)

    def blank_state(self) -> Tree:
        """Returns the agent state of a lane's rows as zeros, [R, ...] a leaf."""
        return map_leaves(np.copy, self._blank_state)


class _Format:
    """Format of a message: three numbers, whether an agent state comes last, the arrays of its content, and that state.

    Args:
        content: tree of arrays with its shapes and dtypes.
        state: State of the rows; () where rows have none, which is then never sent.

    Attributes:
        num_bytes: Number of bytes of a message without a state.
    """

    def __init__(self, content: Tree, state: Tree) -> None:
        self._content, self._state, arrays = content, state, leaves(content)
        self._size, self._state_size = len(arrays), len(leaves(state))
        # By whether the state is there.
        self._layouts = {False: _layout_of(arrays), True: _layout_of([*arrays, *leaves(state)])}
        self.num_bytes = self._layouts[False].block_bytes

    def pack(self, numbers: tuple[int, int, int], content: Sequence[Tree], state: Tree | None) -> np.ndarray:
        """Returns a message, [num_bytes] uint8, with copies of the arrays of all parts of the content."""
        with_state = state is not None and self._state_size > 0
        layout = self._layouts[with_state]
        block = np.empty(layout.block_bytes, np.uint8)
        header, *targets = view_leaves(layout, block)
        header[:] = (*numbers, with_state)
        parts = [*content, state] if with_state else content
        for target, values in zip(targets, [leaf for part in parts for leaf in leaves(part)], strict=True):
            target[...] = values
        return block

    def read(self, block: np.ndarray) -> tuple[list[int], Tree, Tree | None]:
        """Returns the numbers, the content and the state, None if it was not sent; arrays are views of the message."""
        *numbers, with_state = block[:_HEADER_BYTES].view(np.int64).tolist()
        _, *values = view_leaves(self._layouts[bool(with_state)], block)
        state = unflatten(self._state, values[self._size :]) if with_state else None
        return numbers, unflatten(self._content, values[: self._size]), state


def _layout_of(arrays: Sequence[np.ndarray]) -> ParamsLayout:
    return params_layout([((_NUM_HEADER,), "int64"), *((array.shape, array.dtype.name) for array in arrays)])
