"""Arguments of `reset` and `step`: seeds, reset masks and actions, validated before anything is sent.

Messages contain those of AsyncVectorEnv, which callers may match.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError
from gymnasium.vector.utils import iterate

from envpool_bridge.errors import UserError
from envpool_bridge.spec.encoding import IntegerRange
from envpool_bridge.spec.specs import ArraySpec, LeafSpec, SpecTree
from envpool_bridge.spec.tree import Tree, items, map_leaves, shown_path, unflatten


def spread_seeds(seed: int | Sequence[int | None] | None, num_envs: int) -> list[int | None]:
    """Returns one seed for each environment.

    Raises:
        UserError: If the number of seeds is not the number of environments.
    """
    if seed is None:
        return [None] * num_envs
    if isinstance(seed, int | np.integer):
        return [int(seed) + row for row in range(num_envs)]
    seeds = [None if each is None else int(each) for each in seed]
    if len(seeds) != num_envs:
        raise UserError(f"expected one seed per environment, got {len(seeds)} seeds for {num_envs} environments")
    return seeds


def split_mask(options: dict[str, Any] | None, num_envs: int) -> tuple[tuple[bool, ...], dict[str, Any] | None]:
    """Returns the reset mask, () for all rows, and the options of the environments.

    Raises:
        TypeError: If the mask is not a numpy array of bools.
        UserError: If it has another shape, or selects no environment.
    """
    if options is None or "reset_mask" not in options:
        return (), options
    mask = options["reset_mask"]
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_:
        got = mask.dtype if isinstance(mask, np.ndarray) else type(mask).__name__
        raise TypeError(f"`options['reset_mask']` must have `dtype=np.bool_`, got {got}")
    if mask.shape != (num_envs,):
        raise UserError(f"`options['reset_mask']` must have shape `({num_envs},)`, got {mask.shape}")
    if not mask.any():
        least = "must contain a boolean array with at least one True value"
        raise UserError(f"`options['reset_mask']` {least}, got reset_mask={mask}")
    return tuple(mask.tolist()), {name: value for name, value in options.items() if name != "reset_mask"}


def not_started(name: str) -> NoAsyncCallError:
    """Returns the error of waiting for an operation that was not started."""
    return NoAsyncCallError(f"Calling `{name}_wait` without any prior call to `{name}_async`.", name)


def still_pending(name: str, pending: str) -> AlreadyPendingCallError:
    """Returns the error of calling `name` while another operation is pending."""
    waiting = f"while waiting for a pending call to `{pending}` to complete"
    return AlreadyPendingCallError(f"Calling `{name}` {waiting}: call `{pending}_wait` before it", pending)


class ActionArrays:
    """Conversion of actions to arrays.

    Args:
        spec: spec of one action.
        space: Space of the actions of all environments, for messages.
    """

    def __init__(self, spec: SpecTree, space: Space) -> None:
        self._space = space
        self._leaves = unflatten(spec, [_ActionLeaf(shown_path("action", path), leaf) for path, leaf in items(spec)])

    def convert(self, actions: Any, count: int) -> Tree:
        """Returns actions in the structure of the space as arrays, [count, *shape] a leaf.

        Raises:
            TypeError: one number in place of one for each environment.
            UserError: another structure, number, shape or kind of number, or integers that shared memory cannot hold.
        """
        try:
            return map_leaves(partial(_ActionLeaf.convert, count=count), self._leaves, actions)
        except (TypeError, ValueError, KeyError, IndexError) as error:
            kind = TypeError if isinstance(error, TypeError) else UserError
            got = f"got {type(actions).__name__}: {error}"
            raise kind(f"expected actions as action_space.sample() gives them ({self._space}), {got}") from error


class _ActionLeaf:
    """Conversion of one leaf; `name` is for messages."""

    def __init__(self, name: str, leaf: LeafSpec) -> None:
        self._name, self._shape = name, leaf.stored_shape
        self._kinds, self._kind_name = ("iub", "integers") if not isinstance(leaf, ArraySpec) else ("iubf", "numbers")
        self._range = IntegerRange(leaf)

    def convert(self, values: Any, count: int) -> np.ndarray:
        array = np.asarray(values)
        if not array.ndim:
            raise TypeError(f"one value for {count} environments")
        if array.shape != (count, *self._shape):
            raise ValueError(f"expected shape {(count, *self._shape)}, got {array.shape}")
        if array.dtype.kind not in self._kinds:
            raise ValueError(f"expected {self._kind_name}, got dtype {array.dtype}")
        outside = self._range.first_outside(array)
        if outside is not None:  # shared memory would hold another action, and perhaps a legal one
            (row, *place), expected = outside
            at = f" at {place}" if place else ""
            raise ValueError(f"row {row}, {self._name}: expected {expected}{at}, got {array[(row, *place)]}")
        return array


def action_objects(space: Space, actions: Any, count: int) -> list[Any]:
    """Returns one action for each environment.

    Raises:
        UserError: their number is not `count`.
    """
    each = list(iterate(space, actions))
    if len(each) != count:
        raise UserError(f"expected one action per environment, got {len(each)} for {count} environments")
    return each
