"""Operations of XLA in numpy, with XLA's names and meanings of their arguments."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

Ints = tuple[int, ...]


def floordiv(dividend: int, divisor: int) -> int:
    """Returns the quotient of sizes, rounded down."""
    return dividend // divisor


def mod(dividend: int, divisor: int) -> int:
    """Returns the remainder of sizes."""
    return dividend % divisor


def divide(dividend: np.ndarray, divisor: np.ndarray) -> np.ndarray:
    """Returns the quotient; of integers, rounded towards zero."""
    if np.issubdtype(dividend.dtype, np.floating):
        return dividend / divisor
    return (np.sign(dividend) * np.sign(divisor) * (np.abs(dividend) // np.abs(divisor))).astype(dividend.dtype)


def logistic(x: np.ndarray) -> np.ndarray:
    """Returns 1 / (1 + exp(-x)) without overflow."""
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, np.ones_like(small), small) / (1 + small)


def erf(x: np.ndarray) -> np.ndarray:
    """Returns the error function."""
    return np.vectorize(math.erf, otypes=[float])(x).astype(x.dtype)


def select(which: np.ndarray, *cases: np.ndarray) -> np.ndarray:
    """Returns the elements of the cases that `which` numbers."""
    if len(cases) == 2:
        return np.where(which, cases[1], cases[0])
    return np.choose(which, cases)


def broadcast(x: np.ndarray, shape: Ints, axes: Ints) -> np.ndarray:
    """Returns `x` in this shape; axis i of `x` becomes axis `axes[i]`."""
    sizes = [1] * len(shape)
    for axis, size in zip(axes, np.shape(x), strict=True):
        sizes[axis] = size
    return np.broadcast_to(np.reshape(x, sizes), shape)


def iota(shape: Ints, axis: int, dtype: Any) -> np.ndarray:
    """Returns the indices along an axis."""
    return broadcast(np.arange(shape[axis], dtype=dtype), shape, (axis,))


def pad(x: np.ndarray, value: Any, sizes: tuple[Ints, ...]) -> np.ndarray:
    """Returns `x` with (before, after, between) elements `value` in each axis; negative sizes cut."""
    dilated = [max(0, size + (size - 1) * between) for size, (_, _, between) in zip(x.shape, sizes, strict=True)]
    spread = np.full(dilated, value, x.dtype)
    spread[tuple(slice(None, None, between + 1) for _, _, between in sizes)] = x
    cut = tuple(slice(max(0, -low), size - max(0, -high)) for size, (low, high, _) in zip(dilated, sizes, strict=True))
    return np.pad(spread[cut], [(max(0, low), max(0, high)) for low, high, _ in sizes], constant_values=value)


def dot_general(a: np.ndarray, b: np.ndarray, contract: tuple[Ints, Ints], batch: tuple[Ints, Ints]) -> np.ndarray:
    """Returns the product over the contracted axes: batch axes, then free axes of `a`, then those of `b`."""
    free_a = [axis for axis in range(a.ndim) if axis not in (*contract[0], *batch[0])]
    free_b = [axis for axis in range(b.ndim) if axis not in (*contract[1], *batch[1])]
    left, right = a.transpose(*batch[0], *free_a, *contract[0]), b.transpose(*batch[1], *contract[1], *free_b)
    outer, inner = len(batch[0]), math.prod(a.shape[axis] for axis in contract[0])
    shapes = left.shape[:outer], left.shape[outer : outer + len(free_a)], right.shape[outer + len(contract[1]) :]
    left = left.reshape(*shapes[0], math.prod(shapes[1]), inner)
    right = right.reshape(*shapes[0], inner, math.prod(shapes[2]))
    return (left @ right).reshape(*shapes[0], *shapes[1], *shapes[2])


def windows(x: np.ndarray, sizes: Ints, strides: Ints, dilation: Ints) -> np.ndarray:
    """Returns views [*positions, *sizes] of the windows of `x` in all axes."""
    spans = [(size - 1) * step + 1 for size, step in zip(sizes, dilation, strict=True)]
    views = np.lib.stride_tricks.sliding_window_view(x, spans)
    return views[tuple(slice(None, None, step) for step in (*strides, *dilation))]


def reduce_window(x: np.ndarray, reduce: Any, initial: Any, **sizes: Any) -> np.ndarray:
    """Returns the maximum, minimum or sum of each window; `reduce` is a ufunc."""
    between = [step - 1 for step in sizes["base_dilation"]]
    x = pad(x, initial, tuple((low, high, gap) for (low, high), gap in zip(sizes["padding"], between, strict=True)))
    views = windows(x, sizes["window_dimensions"], sizes["window_strides"], sizes["window_dilation"])
    return reduce.reduce(views, axis=tuple(range(x.ndim, 2 * x.ndim)), dtype=x.dtype)


def convolve(x: np.ndarray, kernel: np.ndarray, layout: tuple[Ints, Ints, Ints], **sizes: Any) -> np.ndarray:
    """Returns a convolution as XLA defines it: a matrix product with the kernel at each position.

    Args:
        x: images.
        kernel: weights.
        layout: axes of images (N, C, space), kernel (O, I, space) and result (N, O, space).
        sizes: strides, padding, dilation of images and kernel, and the number of groups.
    """
    x, kernel, groups = x.transpose(layout[0]), kernel.transpose(layout[1]), sizes["groups"]
    space = [(low, high, gap - 1) for (low, high), gap in zip(sizes["padding"], sizes["lhs_dilation"], strict=True)]
    x = pad(x, 0, ((0, 0, 0), (0, 0, 0), *space))
    views = windows(x, (1, 1, *kernel.shape[2:]), (1, 1, *sizes["strides"]), (1, 1, *sizes["rhs_dilation"]))
    axes = x.ndim - 2
    views = views.reshape(*views.shape[: x.ndim], *kernel.shape[2:])
    patches = np.moveaxis(views, 1, 1 + axes)  # [N, *positions, C, *kernel]
    positions, outputs = patches.shape[: 1 + axes], kernel.shape[0] // groups
    flat = patches.reshape(math.prod(positions), groups, -1)
    weights = kernel.reshape(groups, outputs, -1)
    result = np.concatenate([flat[:, group] @ weights[group].T for group in range(groups)], axis=1)
    result = np.moveaxis(result.reshape(*positions, groups * outputs), -1, 1)
    return result.transpose(np.argsort(layout[2]))


def dynamic_slice(x: np.ndarray, starts: tuple[Any, ...], sizes: Ints) -> np.ndarray:
    """Returns the part of these sizes; starts are clipped so that it lies inside."""
    return x[_inside(x.shape, starts, sizes)]


def dynamic_update_slice(x: np.ndarray, update: np.ndarray, starts: tuple[Any, ...]) -> np.ndarray:
    """Returns a copy with a part replaced; starts are clipped so that it lies inside."""
    x = x.copy()
    x[_inside(x.shape, starts, update.shape)] = update
    return x


def _inside(shape: Ints, starts: tuple[Any, ...], sizes: Ints) -> tuple[slice, ...]:
    low = [min(max(int(start), 0), most - size) for start, most, size in zip(starts, shape, sizes, strict=True)]
    return tuple(slice(start, start + size) for start, size in zip(low, sizes, strict=True))


def gather(x: np.ndarray, indices: np.ndarray, sizes: Ints, fill: Any, **axes: Ints) -> np.ndarray:
    """Returns slices of `x` at indices [*batch, number of indexed axes].

    Args:
        x: array.
        indices: starts of the slices; clipped so that slices lie inside.
        sizes: size of a slice in each axis.
        fill: value of slices that did not lie inside; None: as clipped.
        axes: offset_dims, collapsed_slice_dims, start_index_map, operand_batching_dims and start_indices_batching_dims.
    """
    batch, limit = indices.shape[:-1], np.subtract(x.shape, sizes)
    starts = np.zeros((*batch, x.ndim), np.int64)
    starts[..., list(axes["start_index_map"])] = indices
    inside = ((starts >= 0) & (starts <= limit)).all(-1)
    starts = np.clip(starts, 0, limit)
    for axis, source in zip(axes["operand_batching_dims"], axes["start_indices_batching_dims"], strict=True):
        starts[..., axis] = iota(batch, source, np.int64)
    removed = (*axes["collapsed_slice_dims"], *axes["operand_batching_dims"])
    kept = [axis for axis in range(x.ndim) if axis not in removed]
    grid = [starts[..., axis].reshape(*batch, *(1,) * len(kept)) for axis in range(x.ndim)]
    for place, axis in enumerate(kept):
        grid[axis] = grid[axis] + np.arange(sizes[axis]).reshape(-1, *(1,) * (len(kept) - place - 1))
    result = x[tuple(grid)]
    if fill is not None:
        result = np.where(inside.reshape(*batch, *(1,) * len(kept)), result, np.asarray(fill, x.dtype))
    return np.moveaxis(result, range(len(batch), len(batch) + len(kept)), axes["offset_dims"])


def accumulate(ufunc: Any, x: np.ndarray, axis: int, reverse: bool) -> np.ndarray:
    """Returns cumulative results along an axis."""
    x = np.flip(x, axis) if reverse else x
    result = ufunc.accumulate(x, axis=axis, dtype=x.dtype)
    return np.flip(result, axis) if reverse else result


def top_k(x: np.ndarray, k: int, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the `k` largest values, descending, and their indices; equal values in the order of their indices."""
    order = np.argsort(-x, axis=axis, kind="stable").take(range(k), axis=axis)
    return np.take_along_axis(x, order, axis), order.astype(np.int32)


def sort(arrays: tuple[np.ndarray, ...], axis: int, num_keys: int) -> tuple[np.ndarray, ...]:
    """Returns arrays sorted together by the first `num_keys` of them, stably."""
    order = np.lexsort(arrays[:num_keys][::-1], axis=axis)
    return tuple(np.take_along_axis(array, order, axis) for array in arrays)


def scan(
    body: Callable[..., tuple[Any, ...]], arguments: tuple[Any, ...], sizes: tuple[int, int, int], reverse: bool
) -> tuple[Any, ...]:
    """Returns the final carry and the stacked outputs of a loop.

    Args:
        body: maps constants, carry and a slice of the inputs to the next carry and outputs.
        arguments: constants, initial carry, inputs with a leading axis of steps.
        sizes: number of steps, of constants, of carried values.
        reverse: whether the last slice comes first.
    """
    length, num_constants, num_carried = sizes
    constants, carry = arguments[:num_constants], arguments[num_constants : num_constants + num_carried]
    outputs: list[Any] = [None] * length
    for step in range(length)[:: -1 if reverse else 1]:
        slices = [values[step] for values in arguments[num_constants + num_carried :]]
        results = body(*constants, *carry, *slices)
        carry, outputs[step] = results[:num_carried], results[num_carried:]
    return (*carry, *(np.stack(values) for values in zip(*outputs, strict=True)))


def switch(branches: tuple[Callable[..., tuple[Any, ...]], ...], index: Any, *arguments: Any) -> tuple[Any, ...]:
    """Returns the results of the branch that `index` numbers, clipped to the existing ones."""
    return branches[min(max(int(index), 0), len(branches) - 1)](*arguments)


def while_loop(
    condition: Callable[..., tuple[Any, ...]],
    body: Callable[..., tuple[Any, ...]],
    arguments: tuple[Any, ...],
    num_constants: tuple[int, int],
) -> tuple[Any, ...]:
    """Returns the final values of a loop; the arguments start with the constants of the condition and of the body."""
    of_condition, of_both = num_constants[0], sum(num_constants)
    values = arguments[of_both:]
    while condition(*arguments[:of_condition], *values)[0]:
        values = body(*arguments[of_condition:of_both], *values)
    return values
