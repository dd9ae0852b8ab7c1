"""Conversion from D4RL's HDF5 files (extra `minari`, which has h5py)."""

from pathlib import Path
from typing import Any

import numpy as np

from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, EnvSpec
from jaxsrl.datasets.episodes import episode_steps
from jaxsrl.datasets.manifest import Manifest
from jaxsrl.datasets.writer import make_dataset

_ARRAYS = ("observations", "actions", "rewards", "terminals")


def from_d4rl(file: Path, out: Path, max_episode_steps: int | None = None) -> None:
    """Converts a file of D4RL: its episodes in their order, in one row.

    The observation after the last step of an episode is not in the file. Where time ended the episode, or the file does, that step
    is dropped, as D4RL's `qlearning_dataset` does. Actions lie in [-1, 1], as in D4RL's tasks.

    Args:
        file: HDF5 file with "observations", "actions", "rewards", "terminals", and "timeouts" unless `max_episode_steps` is given.
        out: directory to create.
        max_episode_steps: number of steps after which time ends an episode; None for the file's timeouts alone.

    Raises:
        UserError: h5py is not installed, the file is no such file, nothing says where time ended episodes, or `out` has files.
    """
    if max_episode_steps is not None and max_episode_steps < 1:
        raise UserError(f"max_episode_steps is the length of an episode: expected at least 1, got {max_episode_steps}")
    arrays = _read(file)
    if "timeouts" not in arrays and max_episode_steps is None:
        raise UserError(
            f'{file} has no "timeouts": expected the length at which time ends an episode, without which episodes are joined; use '
            f"--max-episode-steps (1000 for MuJoCo)"
        )
    observation, action = (arrays[name].astype(np.float32) for name in ("observations", "actions"))
    reward, terminal = arrays["rewards"].astype(np.float32), arrays["terminals"].astype(bool)
    ends = terminal | arrays.get("timeouts", np.zeros_like(terminal)).astype(bool)
    ends[-1] = True
    if max_episode_steps is not None:
        _cut_long_episodes(ends, max_episode_steps)
    spec = EnvSpec(
        file.stem, ArraySpec(observation.shape[1:], "float32"), ArraySpec(action.shape[1:], "float32", -1.0, 1.0)
    )
    begin = 0
    with make_dataset(out, Manifest(spec, 1, origin={"d4rl": file.name})) as writer:
        for last in np.flatnonzero(ends):
            at = slice(begin, last + 1 if terminal[last] else last)
            # No value follows a terminal step, so that its next observation does not matter.
            seen = np.concatenate([observation[at], observation[last : last + 1]])
            if at.stop > begin:
                writer.append(episode_steps(seen, action[at], reward[at], bool(terminal[last])))
            begin = last + 1


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
