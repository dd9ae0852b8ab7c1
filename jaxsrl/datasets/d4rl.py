"""Conversion from D4RL's HDF5 files (extra `minari`, which has h5py)."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.errors import UserError
from envpool_bridge.spec.encoding import INTEGER_LIMITS, start_of, store
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec, LeafSpec, describe_leaves, is_one_leaf, zeros_of
from jaxsrl.datasets.episodes import episode_steps
from jaxsrl.datasets.manifest import Manifest
from jaxsrl.datasets.writer import make_dataset
from jaxsrl.envs.registry import make_env

_ARRAYS = ("observations", "actions", "rewards", "terminals")


def from_d4rl(file: Path, out: Path, max_episode_steps: int | None = None, env: EnvConfig | None = None) -> None:
    """Converts a file of D4RL: its episodes in their order, in one row.

    The observation after the last step of an episode is not in the file. Where time ended the episode, or the file does, that step
    is dropped, as D4RL's `qlearning_dataset` does.

    Args:
        file: HDF5 file with "observations", "actions", "rewards", "terminals", and "timeouts" unless `max_episode_steps` is given.
        out: directory to create.
        max_episode_steps: number of steps after which time ends an episode; None for the file's timeouts alone.
        env: environment whose observations and actions the file has; None for floats without bounds, and actions in [-1, 1], as
            in D4RL's tasks.

    Raises:
        UserError: h5py is not installed, the file is no such file, nothing says where time ended episodes, values are not those of
            the environment, or `out` has files.
    """
    if max_episode_steps is not None and max_episode_steps < 1:
        raise UserError(f"max_episode_steps is the length of an episode: expected at least 1, got {max_episode_steps}")
    arrays = _read(file)
    if "timeouts" not in arrays and max_episode_steps is None:
        raise UserError(
            f'{file} has no "timeouts": expected the length at which time ends an episode, without which episodes are joined; use '
            f"--max-episode-steps (1000 for MuJoCo)"
        )
    spec = _assumed_spec(file, arrays) if env is None else make_env(env).spec()
    observation = _stored(file, "observation", spec, arrays["observations"])
    action = _stored(file, "action", spec, arrays["actions"])
    reward, terminal = arrays["rewards"].astype(np.float32), arrays["terminals"].astype(bool)
    timeout = arrays.get("timeouts", np.zeros_like(terminal)).astype(bool)
    ends = terminal | timeout
    ends[-1] = True
    if max_episode_steps is not None:
        _cut_long_episodes(ends, max_episode_steps)
    begin, saved_env = 0, None if env is None else dataclasses.asdict(env)
    with make_dataset(out, Manifest(spec, 1, env=saved_env, origin={"d4rl": file.name})) as writer:
        for last in np.flatnonzero(ends):
            at = slice(begin, last + 1 if terminal[last] else last)
            # No value follows a terminal step, so that its next observation does not matter.
            seen = np.concatenate([observation[at], observation[last : last + 1]])
            terminated = bool(terminal[last])
            if at.stop > begin:
                writer.append(
                    episode_steps(seen, action[at], reward[at], (terminated, not terminated or bool(timeout[last])))
                )
            begin = last + 1


def _assumed_spec(file: Path, arrays: dict[str, Any]) -> EnvSpec:
    for name in ("observations", "actions"):
        if arrays[name].dtype.kind != "f":
            raise UserError(
                f"{file}: expected {name} of floats, got {arrays[name].dtype}, whose range is not in the file: use --env-id with "
                f"their environment"
            )
    observation, action = (ArraySpec(arrays[name].shape[1:], "float32") for name in ("observations", "actions"))
    return EnvSpec(file.stem, observation, dataclasses.replace(action, low=-1.0, high=1.0))


def _stored(file: Path, side: str, spec: EnvSpec, values: np.ndarray) -> np.ndarray:
    """Returns values, [N, ...], in the stored form of the spec; raises UserError unless they are values of it."""
    leaf: LeafSpec = getattr(spec, side)
    if isinstance(leaf, DiscreteSpec) and values.shape[1:] == (1,):
        values = values[:, 0]
    if spec.agents or not is_one_leaf(leaf) or values.shape[1:] != leaf.stored_shape:
        raise UserError(
            f"{file}: expected {describe_leaves(side, leaf)} of {spec.env_id}: got {side}s of shape {values.shape[1:]}"
        )
    low, high = _range(leaf)
    is_float = leaf.dtype.startswith("float")
    given = values.astype(leaf.dtype) if is_float else values
    if not ((given >= low) & (given <= high) & np.isfinite(given) & (is_float | (given == np.trunc(given)))).all():
        raise UserError(
            f"{file}: expected {side}s of {spec.env_id} from {np.min(low):g} to {np.max(high):g}: got {float(values.min()):g} to "
            f"{float(values.max()):g}; rescale them, or use --env-id with the environment whose {side}s they are"
        )
    out = zeros_of(leaf, (len(values),))
    store(leaf, given, out)
    return out


def _range(leaf: LeafSpec) -> tuple[Any, Any]:
    """Returns the smallest and the largest value, as arrays that broadcast against one."""
    if not isinstance(leaf, ArraySpec):
        return start_of(leaf), start_of(leaf) + np.reshape(leaf.num_values, leaf.shape) - 1
    free = INTEGER_LIMITS.get(leaf.dtype, (-np.inf, np.inf))
    low, high = (leaf.bound(which) for which in ("low", "high"))
    return free[0] if low is None else low, free[1] if high is None else high


def _cut_long_episodes(ends: np.ndarray, length: int) -> None:
    """Marks every `length`-th step since the end before as an end; `ends` [N] bool is changed."""
    begin = 0
    for last in np.flatnonzero(ends):
        ends[begin + length - 1 : last : length] = True
        begin = last + 1


def _read(file: Path) -> dict[str, Any]:
    try:
        import h5py
    except ModuleNotFoundError as error:
        raise UserError(f"D4RL's files need h5py ({error}): pip install 'jaxsrl[minari]'") from error
    try:
        with h5py.File(file) as data:
            arrays = {name: np.asarray(data[name]) for name in (*_ARRAYS, "timeouts") if name in data}
    except OSError as error:
        raise UserError(f"{file} is no HDF5 file: {error}") from error
    missing = [name for name in _ARRAYS if name not in arrays]
    if missing or not len(arrays["rewards"]):
        raise UserError(
            f"{file}: expected steps of D4RL, {', '.join(_ARRAYS)}: got {', '.join(arrays) or 'none of them'}"
        )
    return arrays
