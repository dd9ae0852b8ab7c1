"""A policy exported by `jaxsrl export`. It needs numpy, and jax if it was exported to jax; not jaxsrl.

Import `Policy` from this file. The first step of an episode is `action, state = policy(observation)`, every later one
`action, state = policy(observation, state)`.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np


class BasePolicy:
    """A function from observations and state to actions and state, in the environment's own dtypes.

    Attributes:
        description: contents of policy.json: the environment's observation and action, and the policy's origin.
    """

    def __init__(self) -> None:
        directory = Path(__file__).resolve().parent
        self.description = json.loads((directory / "policy.json").read_text())
        with np.load(directory / "policy.npz") as arrays:
            self._arrays = dict(arrays.items())
        self._rows_per_env = self.description["rows_per_env"]
        self._initial = [self._arrays.pop(f"state/{index}") for index in range(self.description["state_leaves"])]

    def __call__(self, observation: Any, state: Any = None, is_first: Any = None) -> tuple[Any, list[np.ndarray]]:
        """Returns actions and the next state.

        Args:
            observation: Observation of one environment, or a batch with a leading axis of rows in each array. Rows of a
                multi-agent environment are its agents, and the leading axis is required.
            state: result of the previous call with the same rows; None at the start of episodes.
            is_first: [rows] bool, which rows start an episode; None: all rows if `state` is None, otherwise no row.

        Raises:
            ValueError: shapes do not fit.
        """
        leaves = [store(leaf, value) for leaf, value in _items(self.description["observation"], observation)]
        is_batch = leaves[0].ndim > len(_leaf_specs(self.description["observation"])[0].get("shape", ()))
        if not is_batch:
            leaves = [leaf[None] for leaf in leaves]
        self._validate(leaves)
        rows = len(leaves[0])
        is_first = state is None if is_first is None else is_first
        state = [np.tile(leaf, self._tiles(leaf, rows)) for leaf in self._initial] if state is None else list(state)
        if any(len(leaf) != rows for leaf in state):
            raise ValueError(
                f"state is of {len(state[0])} rows, and the observation of {rows}: keep the rows of a batch"
            )
        first = np.broadcast_to(np.asarray(is_first, bool), (rows,))
        outputs = self.compute(rows, [*leaves, *state, first])
        specs = _leaf_specs(self.description["action"])
        actions = [restore(leaf, value) for leaf, value in zip(specs, outputs, strict=False)]
        if not is_batch:
            actions = [action[0] for action in actions]
        return _tree(self.description["action"], iter(actions)), outputs[len(specs) :]

    def compute(self, rows: int, inputs: list[np.ndarray]) -> list[np.ndarray]:
        """Returns the leaves of actions and state in stored form.

        Args:
            rows: number of rows.
            inputs: leaves of the observation and the state, then `is_first`.
        """
        raise NotImplementedError

    def _tiles(self, leaf: np.ndarray, rows: int) -> tuple[int, ...]:
        return (rows // self._rows_per_env, *(1,) * (leaf.ndim - 1))

    def _validate(self, leaves: list[np.ndarray]) -> None:
        specs = _leaf_specs(self.description["observation"])
        for spec, leaf in zip(specs, leaves, strict=True):
            if leaf.shape[1:] != tuple(spec.get("shape", ())) or len(leaf) != len(leaves[0]):
                raise ValueError(
                    f"an observation must have shape {tuple(spec['shape'])}, or [rows] more: got {leaf.shape}"
                )
        if len(leaves[0]) % self._rows_per_env:
            raise ValueError(f"rows must be a multiple of {self._rows_per_env} agents: got {len(leaves[0])}")


def store(spec: dict[str, Any], value: Any) -> np.ndarray:
    """Returns an environment's value in the form that the network takes: integers from zero, arrays in the spec's dtype."""
    if spec["kind"] == "array":
        return np.asarray(value, spec["dtype"])
    return (np.asarray(value, np.int64) - np.reshape(spec["start"], spec.get("shape", ()))).astype(np.int32)


def restore(spec: dict[str, Any], stored: np.ndarray) -> np.ndarray:
    """Returns a network's value as the environment takes it; arrays are clipped to their bounds."""
    if spec["kind"] != "array":
        return (stored.astype(np.int64) + np.reshape(spec["start"], spec.get("shape", ()))).astype(spec["source_dtype"])
    for which, limit in (("low", np.maximum), ("high", np.minimum)):
        if spec[which] is not None:
            bound = np.asarray(spec[which], stored.dtype)
            stored = limit(stored, bound.reshape(spec.get("shape", ())) if bound.ndim else bound)
    return stored.astype(spec["source_dtype"])


def _items(spec: dict[str, Any], tree: Any) -> list[tuple[dict[str, Any], Any]]:
    """Returns each leaf of the spec with its value: the keys of a dict sorted, the items of a tuple in sequence."""
    if spec["kind"] == "dict":
        return [pair for key in sorted(spec["items"]) for pair in _items(spec["items"][key], tree[key])]
    if spec["kind"] == "tuple":
        return [pair for child, value in zip(spec["items"], tree, strict=True) for pair in _items(child, value)]
    return [(spec, tree)]


def _leaf_specs(spec: dict[str, Any]) -> list[dict[str, Any]]:
    if spec["kind"] in ("dict", "tuple"):
        children = spec["items"].values() if spec["kind"] == "dict" else spec["items"]
        return [leaf for child in children for leaf in _leaf_specs(child)]
    return [spec]


def _tree(spec: dict[str, Any], leaves: Any) -> Any:
    if spec["kind"] == "dict":
        return {key: _tree(spec["items"][key], leaves) for key in sorted(spec["items"])}
    if spec["kind"] == "tuple":
        return tuple(_tree(child, leaves) for child in spec["items"])
    return next(leaves)
