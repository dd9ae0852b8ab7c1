"""Conversion from D4RL's HDF5 files (extra `minari`, which has h5py)."""

from pathlib import Path
from typing import Any

import numpy as np

from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, EnvSpec
from jaxsrl.datasets.episodes import episode_steps
from jaxsrl.datasets.manifest import Manifest
from jaxsrl.datasets.writer import DatasetWriter

_ARRAYS = ("observations", "actions", "rewards", "terminals")


def from_d4rl(file: Path, out: Path) -> None:
    """Converts a file of D4RL: its episodes in their order, in one row.

    The observation after the last step of an episode is not in the file. Where time ended the episode, or the file does, that step
    is dropped, as D4RL's `qlearning_dataset` does. Actions lie in [-1, 1], as in D4RL's tasks.

    Args:
        file: HDF5 file with "observations", "actions", "rewards", "terminals", and if there are any "timeouts".
        out: directory to create.

    Raises:
        UserError: h5py is not installed, the file is no such file, or `out` has files.
    """
    arrays = _read(file)
    observation, action = (arrays[name].astype(np.float32) for name in ("observations", "actions"))
    reward, terminal = arrays["rewards"].astype(np.float32), arrays["terminals"].astype(bool)
    ends = terminal | arrays.get("timeouts", np.zeros_like(terminal)).astype(bool)
    ends[-1] = True
    spec = EnvSpec(
        file.stem, ArraySpec(observation.shape[1:], "float32"), ArraySpec(action.shape[1:], "float32", -1.0, 1.0)
    )
    begin = 0
    with DatasetWriter(out, Manifest(spec, 1, origin={"d4rl": file.name})) as writer:
        for last in np.flatnonzero(ends):
            at = slice(begin, last + 1 if terminal[last] else last)
            # No value follows a terminal step, so that its next observation does not matter.
            seen = np.concatenate([observation[at], observation[last : last + 1]])
            if at.stop > begin:
                writer.append(episode_steps(seen, action[at], reward[at], bool(terminal[last])))
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
