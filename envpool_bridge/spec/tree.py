"""Structured observations and actions: nested dicts and tuples with arrays (or specs) at the leaves, without jax.

A tree is a leaf, a dict of trees or a tuple of trees; jax reads the same dicts and tuples as its own pytrees. Leaves
are in jax's order: the keys of a dict sorted, the items of a tuple in sequence. A path names a leaf: "" is the tree
itself, "image" an item of a dict, "arm/0" the first item of the tuple "arm". Inside a key, "/" is written "~1" and "~"
is written "~0".
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeGuard

import numpy as np

Tree = Any
Path = tuple[str | int, ...]


def is_dict(tree: Tree) -> TypeGuard[dict[str, Any]]:
    """Returns whether the tree is a dict of trees."""
    return isinstance(tree, dict)


def is_tuple(tree: Tree) -> TypeGuard[tuple[Any, ...]]:
    """Returns whether the tree is a tuple of trees."""
    return isinstance(tree, tuple)


def leaves(tree: Tree) -> list[Any]:
    """Returns the leaves in order."""
    return [leaf for _, leaf in items(tree)]


def paths(tree: Tree) -> list[str]:
    """Returns the path of each leaf, in the order of `leaves`.

    Examples:
        >>> paths({"image": 0, "arm": (1, 2)})
        ['arm/0', 'arm/1', 'image']
    """
    return [path_name(path) for path, _ in items(tree)]


def items(tree: Tree, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yields (keys, leaf) of each leaf, in order."""
    if is_dict(tree):
        for key in sorted(tree):
            yield from items(tree[key], (*path, key))
    elif is_tuple(tree):
        for index, child in enumerate(tree):
            yield from items(child, (*path, index))
    else:
        yield path, tree


def path_name(path: Path) -> str:
    """Returns keys as one string; see the module's docstring."""
    return "/".join(str(key).replace("~", "~0").replace("/", "~1") for key in path)


def shown_path(field: str, path: Path) -> str:
    """Formats keys in Python syntax after the name of a field: `observation['image'][0]`."""
    return field + "".join(f"[{key!r}]" for key in path)


def lookup(tree: Tree, path: Path) -> Any:
    """Returns the value at these keys. Raises KeyError, IndexError or TypeError if there is none."""
    for key in path:
        tree = tree[key]
    return tree


def map_leaves(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """Returns a tree of `function(leaf, ...)`; the others have the structure of the first.

    Examples:
        >>> map_leaves(lambda x, y: x + y, {"a": 1, "b": (2,)}, {"a": 10, "b": (20,)})
        {'a': 11, 'b': (22,)}
    """
    if is_dict(tree):
        return {key: map_leaves(function, tree[key], *[other[key] for other in others]) for key in sorted(tree)}
    if is_tuple(tree):
        return tuple(map_leaves(function, *children) for children in zip(tree, *others, strict=True))
    return function(tree, *others)


def unflatten(like: Tree, values: Sequence[Any]) -> Tree:
    """Returns a tree of the structure of `like` with these leaves, in order."""
    remaining = iter(values)
    tree = map_leaves(lambda _: next(remaining), like)
    if next(remaining, None) is not None:
        raise ValueError(f"expected {len(leaves(like))} leaves, got {len(values)}")
    return tree


def take(tree: Tree, place: Any) -> Tree:
    """Returns `array[place]` of each leaf: views where numpy returns views."""
    return tree[place] if isinstance(tree, np.ndarray) else map_leaves(lambda array: array[place], tree)


def write(target: Tree, values: Tree, place: Any = ...) -> None:
    """Assigns `array[place] = value` in each leaf; the trees have the same structure."""
    if isinstance(target, np.ndarray):
        target[place] = values
    else:
        map_leaves(lambda array, value: write(array, value, place), target, values)
