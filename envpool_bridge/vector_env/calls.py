"""Arguments of `reset` and `step`: seeds, reset masks and actions, validated before anything is sent."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.vector.utils import iterate

from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import DiscreteSpec, LeafSpec, MultiDiscreteSpec, SpecTree
from envpool_bridge.spec.tree import Tree, map_leaves


def spread_seeds(seed: int | Sequence[int | None] | None, num_envs: int) -> list[int | None]:
    """Returns one seed for each environment.

    Raises:
        UserError: the number of seeds is not the number of environments.
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
        TypeError: the mask is not a numpy array of bools.
        UserError: it has another shape, or selects no environment.
    """
    if options is None or "reset_mask" not in options:
        return (), options
    mask = options["reset_mask"]
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_:
        got = f"dtype {mask.dtype}" if isinstance(mask, np.ndarray) else type(mask).__name__
        raise TypeError(f"options['reset_mask'] must be a numpy array of dtype bool, got {got}")
    if mask.shape != (num_envs,) or not mask.any():
        raise UserError(
            f"options['reset_mask'] must have shape ({num_envs},) and at least one true value, got {mask.tolist()}"
        )
    return tuple(mask.tolist()), {name: value for name, value in options.items() if name != "reset_mask"}


def action_arrays(spec: SpecTree, space: Space, actions: Any, count: int) -> Tree:
    """Converts actions to arrays, [count, *shape] a leaf.

    Args:
        spec: spec of one action.
        space: of the actions of all environments, for messages.
        actions: in the structure of `space`.
        count: number of actions.

    Raises:
        TypeError: one number in place of one for each environment.
        UserError: another structure, number, shape or kind of number.
    """
    try:
        return map_leaves(partial(_action_array, count), spec, actions)
    except (TypeError, ValueError, KeyError, IndexError) as error:
        kind = TypeError if isinstance(error, TypeError) else UserError
        got = f"got {type(actions).__name__}: {error}"
        raise kind(f"expected actions as action_space.sample() gives them ({space}), {got}") from error


def _action_array(count: int, leaf: LeafSpec, values: Any) -> np.ndarray:
    array = np.asarray(values)
    if not array.ndim:
        raise TypeError(f"one value for {count} environments")
    if array.shape != (count, *leaf.stored_shape):
        raise ValueError(f"expected shape {(count, *leaf.stored_shape)}, got {array.shape}")
    if isinstance(leaf, DiscreteSpec | MultiDiscreteSpec) and array.dtype.kind not in "iub":
        raise ValueError(f"expected integers, got dtype {array.dtype}")
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
