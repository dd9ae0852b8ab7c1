"""Inference calls with one transfer to the device for all small arrays and one back, instead of one per array.

Starting a transfer takes longer than moving a small array. The host writes the small arrays of a call one after another into a
buffer of bytes, and the program on the device splits it. Larger arrays go as they are: on an H200, packing 1.8 MB of images made a
call 0.3 ms longer. The program writes its results to host memory: on an H100, a call took 0.52 ms with results fetched from the
device, and takes 0.18 ms. Transfers change no bits. Results may differ from those of separate arrays by rounding (3e-8 was
measured), because the compiler fuses this program differently.
"""

import dataclasses
import math
import threading
from collections.abc import Callable
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agents.api import AgentState, Array, Params
from jaxsrl.machine.devices import Device, host_memory

_ALIGNMENT = 16  # of an array in the buffer, in bytes
_MOST_BYTES = 256 * 1024  # of an array that is packed


@dataclasses.dataclass(frozen=True)
class Form:
    """Shapes and dtypes of a tree of arrays, which define the place of each array in a buffer of bytes. Hashable.

    Attributes:
        structure: PyTreeDef of the tree.
        arrays: (shape, dtype in jax) of each leaf.
    """

    structure: Any
    arrays: tuple[tuple[tuple[int, ...], np.dtype], ...]

    @classmethod
    def of(cls, tree: Any) -> "Form":
        """Returns the form of a tree whose leaves have a shape and a dtype."""
        leaves, structure = jax.tree.flatten(tree)
        return cls(structure, tuple([(leaf.shape, jax.dtypes.canonicalize_dtype(leaf.dtype)) for leaf in leaves]))

    @cached_property
    def places(self) -> list[slice]:
        """Bytes of each array."""
        places, start = [], 0
        for shape, dtype in self.arrays:
            size = math.prod(shape) * dtype.itemsize
            places.append(slice(start, start + size))
            start += size + _padding(size)
        return places

    def allocate(self) -> np.ndarray:
        """Returns a buffer of zeros."""
        last = self.places[-1].stop if self.places else 0
        return np.zeros(last + _padding(last), np.uint8)

    def views(self, buffer: np.ndarray) -> list[np.ndarray]:
        """Returns the arrays in a buffer, without copies."""
        return [
            buffer[place].view(dtype).reshape(shape)
            for place, (shape, dtype) in zip(self.places, self.arrays, strict=True)
        ]

    def split_on_device(self, buffer: Array) -> Any:
        """Returns the tree of arrays in a buffer. For use inside a program."""
        leaves = []
        for place, (shape, dtype) in zip(self.places, self.arrays, strict=False):
            raw = buffer[place]
            if np.issubdtype(dtype, np.bool_):
                leaves.append(raw.reshape(shape) != 0)
            elif dtype.itemsize == 1:
                leaves.append(jax.lax.bitcast_convert_type(raw.reshape(shape), dtype))
            else:
                leaves.append(jax.lax.bitcast_convert_type(raw.reshape(*shape, dtype.itemsize), dtype))
        return self.structure.unflatten(leaves)


def join_on_device(tree: Any) -> Array:
    """Returns a tree of arrays as one buffer, in the layout of their `Form`. For use inside a program."""
    parts = [jnp.zeros(0, jnp.uint8)]
    for leaf in jax.tree.leaves(tree):
        raw = (
            leaf.astype(jnp.uint8)
            if jnp.issubdtype(leaf.dtype, jnp.bool_)
            else jax.lax.bitcast_convert_type(leaf, jnp.uint8)
        )
        parts.append(jnp.pad(raw.reshape(-1), (0, _padding(raw.size))))
    return jnp.concatenate(parts)


def _padding(size: int) -> int:
    return -size % _ALIGNMENT


@dataclasses.dataclass(frozen=True)
class _Call:
    """Forms of a call's arrays. Hashable.

    Attributes:
        structure: PyTreeDef of (observation, is_first, steps, rows).
        large: numbers of the leaves that are not packed.
        packed: form of a list of the others.
        results: form of (action, extras).
    """

    structure: Any
    large: tuple[int, ...]
    packed: Form
    results: Form

    @classmethod
    def of(cls, arrays: Any, results: Form) -> "_Call":
        leaves, structure = jax.tree.flatten(arrays)
        large = tuple(place for place, leaf in enumerate(leaves) if leaf.nbytes > _MOST_BYTES)
        small = [leaf for place, leaf in enumerate(leaves) if place not in large]
        return cls(structure, large, Form.of(small), results)


class PackedAct:
    """`ActOnRows` that packs the small arrays of each call; its actions and extras are numpy arrays.

    Thread-safety: any thread; each thread has its own buffer for each form.
    """

    def __init__(self, act: Callable[..., tuple[Any, dict[str, Any], AgentState]]) -> None:
        self._act = jax.jit(act)  # traced once: for the form of its results, and inside the program
        self._local = threading.local()
        self._calls: dict[Form, _Call] = {}
        self._programs: dict[Device, Callable[..., tuple[Array, AgentState]]] = {}

    def __call__(
        self,
        params: Params,
        observation: Any,
        agent_state: AgentState,
        is_first: np.ndarray,
        keys: Array,
        steps: np.ndarray,
        rows: np.ndarray | None = None,
    ) -> tuple[Any, dict[str, Any], AgentState]:
        """Acts on the device of `keys`, where all arrays must be that are not the host's.

        Results are fetched to the host, so that the buffer can be reused. The recurrent state stays on the device.
        """
        arrays = (observation, is_first, steps, rows)
        form = Form.of(arrays)
        call = self._calls.get(form)
        if call is None:
            action, extras, _ = jax.eval_shape(self._act, params, observation, agent_state, is_first, keys, steps, rows)
            call = self._calls[form] = _Call.of(arrays, Form.of((action, extras)))
        leaves = jax.tree.leaves(arrays)
        large = {place: leaves[place] for place in call.large}
        buffer, views = self._buffer(call.packed)
        small = [leaf for place, leaf in enumerate(leaves) if place not in large]
        for view, leaf in zip(views, small, strict=True):
            view[...] = leaf
        packed, after = self._program(next(iter(keys.devices())))(call, buffer, large, params, agent_state, keys)
        action, extras = call.results.structure.unflatten(call.results.views(np.asarray(packed)))
        return action, extras, after

    def _program(self, device: Device) -> Callable[..., tuple[Array, AgentState]]:
        if device not in self._programs:
            self._programs[device] = jax.jit(self._traced, static_argnums=0, out_shardings=(host_memory(device), None))
        return self._programs[device]

    def _traced(
        self,
        call: "_Call",
        buffer: Array,
        large: dict[int, Array],
        params: Params,
        agent_state: AgentState,
        keys: Array,
    ) -> tuple[Array, AgentState]:
        small = iter(call.packed.split_on_device(buffer))
        leaves = [large[place] if place in large else next(small) for place in range(call.structure.num_leaves)]
        observation, is_first, steps, rows = call.structure.unflatten(leaves)
        action, extras, after = self._act(params, observation, agent_state, is_first, keys, steps, rows)
        return join_on_device((action, extras)), after

    def _buffer(self, form: Form) -> tuple[np.ndarray, list[np.ndarray]]:
        buffers = self._local.__dict__.setdefault("buffers", {})
        if form not in buffers:
            buffer = form.allocate()
            buffers[form] = (buffer, form.views(buffer))
        return buffers[form]
