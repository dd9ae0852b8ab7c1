"""Comparison of an exported policy with the agent that it was made from."""

import runpy
from pathlib import Path
from typing import Any

import jax
import numpy as np

from agents.api import Params
from envpool_bridge.envs.io.action_reader import ActionReader
from envpool_bridge.errors import UserError
from envpool_bridge.spec.encoding import restored
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec, LeafSpec, MultiDiscreteSpec
from envpool_bridge.spec.tree import Tree, items, leaves, unflatten
from jaxsrl.evaluation.export.act_function import ActFunction

TOLERANCE = 1e-4
"""Largest difference of a numpy policy's floats from the original, absolute and relative."""

_STEPS, _ENVS = 4, 5


def load_policy(directory: Path, **arguments: Any) -> Any:
    """Returns the policy of an exported directory; `arguments` are those of its class.

    Raises:
        UserError: If the directory has no policy.py.
    """
    file = directory / "policy.py"
    if not file.is_file():
        raise UserError(f"no exported policy in {directory}: expected policy.py in it")
    return runpy.run_path(str(file))["Policy"](**arguments)  # unlike an import, it writes no bytecode


def validate_export(policy: Any, function: ActFunction, params: Params, spec: EnvSpec, *, exact: bool) -> None:
    """Compares actions and states for random observations, of several environments and of one.

    Episodes start at random steps. Both sides continue from their own states.

    Args:
        policy: exported policy, made with seed 0.
        function: original function.
        params: Parameters of the agent.
        spec: Specification of the environment.
        exact: whether floats must be bit-equal; otherwise within `TOLERANCE`. Integers are always equal.

    Raises:
        UserError: results differ.
    """
    random, seeds = np.random.default_rng(0), np.random.default_rng(0)
    reader, act = ActionReader(spec.action, clip=True), jax.jit(function.call)
    num_actions = len(leaves(spec.action))
    tolerance = 0.0 if exact else TOLERANCE
    for envs in (_ENVS, 1):
        rows = envs * spec.rows_per_env
        own = [np.tile(leaf, (envs, *(1,) * (leaf.ndim - 1))) for leaf in function.initial_state]
        state: Any = None
        for step in range(_STEPS):
            observation = random_observation(function.observation, spec.action_mask, rows, random)
            is_first = (random.random(rows) < 0.2) | (step == 0)
            seed = seeds.integers(1 << 32, dtype=np.uint32)
            outputs = [np.asarray(leaf) for leaf in act(params, seed, *leaves(observation), *own, is_first)]
            own = outputs[num_actions:]
            expected = reader.read_together(unflatten(spec.action, outputs[:num_actions]))
            action, state = policy(restored(function.observation, observation), state, is_first)
            for value, other in zip([*leaves(expected), *own], [*leaves(action), *state], strict=True):
                _compare(value, other, spec.env_id, tolerance)


def _compare(expected: np.ndarray, result: np.ndarray, env_id: str, tolerance: float) -> None:
    if np.issubdtype(expected.dtype, np.floating):
        equal = np.allclose(result, expected, rtol=tolerance, atol=tolerance, equal_nan=True)
    else:
        equal = np.array_equal(result, expected)
    if not equal or result.shape != expected.shape:
        raise UserError(
            f"the exported policy for {env_id} differs from the original: expected {expected.ravel()[:8]}, got "
            f"{result.ravel()[:8]}; please report this policy's configuration"
        )


def random_observation(spec: Tree, mask: tuple[str, ...], rows: int, random: np.random.Generator) -> Tree:
    """Returns random observations in stored form, [rows, ...] a leaf; a mask has a legal action at least."""
    values = [_random_leaf(leaf, rows, random) for _, leaf in items(spec)]
    for (path, _), value in zip(items(spec), values, strict=True):
        if mask and path == mask:
            value[...] = 1
            value[:, :-1] = random.random(value[:, :-1].shape) < 0.7
    return unflatten(spec, values)


def _random_leaf(leaf: LeafSpec, rows: int, random: np.random.Generator) -> np.ndarray:
    shape = (rows, *leaf.shape)
    if not isinstance(leaf, ArraySpec):
        return random.integers(0, _num_values(leaf), shape).astype(leaf.dtype)
    low, high = (_finite(leaf, which) for which in ("low", "high"))
    drawn = random.random(shape) * (high - low) + low
    return drawn.round().astype(leaf.dtype) if np.dtype(leaf.dtype).kind in "iub" else drawn.astype(leaf.dtype)


def _num_values(leaf: DiscreteSpec | MultiDiscreteSpec) -> Any:
    return leaf.num_values if isinstance(leaf, DiscreteSpec) else np.reshape(leaf.num_values, leaf.shape)


def _finite(leaf: ArraySpec, which: str) -> np.ndarray:
    """Returns a bound, at most 3 from 0 for floats: values far away saturate networks."""
    bound, limit = leaf.bound(which), {"low": -3.0, "high": 3.0}[which]
    value = np.asarray(limit if bound is None else bound, np.float64)
    return np.clip(value, -3.0, 3.0) if leaf.dtype.startswith("float") else value
