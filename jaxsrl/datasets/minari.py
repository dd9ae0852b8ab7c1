"""Conversion from and to datasets of Minari, the Farama Foundation's format (extra `minari`)."""

import contextlib
import copy
import json
import os
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from envpool_bridge.envs.config import suite_of_id
from envpool_bridge.envs.io.spaces import spec_of_spaces
from envpool_bridge.errors import UserError
from envpool_bridge.spec.encoding import restored, store
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, LeafSpec, SpecTree, zeros_of
from envpool_bridge.spec.tree import is_dict, is_tuple, items, take
from jaxsrl.datasets.dataset import Dataset, find_episodes
from jaxsrl.datasets.episodes import episode_steps
from jaxsrl.datasets.manifest import Manifest
from jaxsrl.datasets.writer import make_dataset, make_directory

_PATH = "MINARI_DATASETS_PATH"
_REWARD_DTYPE = "reward_dtype"


def import_minari() -> Any:
    """Returns the package.

    Raises:
        UserError: If it is not installed.
    """
    try:
        import minari
    except ModuleNotFoundError as error:
        raise UserError(
            f"Minari's format needs packages that are not installed ({error}): pip install 'jaxsrl[minari]'"
        ) from error
    return minari


def from_minari(name: str, out: Path) -> None:
    """Converts a dataset of Minari: its episodes in their order, in one row.

    64-bit observations, actions and rewards are stored in 32 bits.

    Args:
        name: id of a local dataset, such as "D4RL/pen/human-v2", or its directory.
        out: directory to create.

    Raises:
        UserError: If there is no such dataset, or `out` has files.
        UnsupportedSpaceError: If a space has no arrays of one shape, as text has not.
    """
    minari = import_minari()
    source = _load(minari, name)
    env_id = getattr(source.spec.env_spec, "id", None) or str(source.spec.dataset_id)
    spec = spec_of_spaces(source.observation_space, source.action_space, env_id, 1)
    env = _env_of_spec(source.spec.env_spec)
    metadata = source.storage.metadata
    origin = {"minari": str(source.spec.dataset_id), "agent": str(metadata.get("algorithm_name", ""))}
    origin[_REWARD_DTYPE] = next((str(episode.rewards.dtype) for episode in source.iterate_episodes()), "float64")
    scores = [metadata.get(name) for name in ("ref_min_score", "ref_max_score")]
    random, expert = (None if score is None else float(score) for score in scores)
    is_lossy = False
    with make_dataset(
        out, Manifest(spec, 1, env=env, origin=origin, score_random=random, score_expert=expert)
    ) as writer:
        for episode in source.iterate_episodes():
            count = len(episode.rewards)
            observation, action = zeros_of(spec.observation, (count + 1,)), zeros_of(spec.action, (count,))
            store(spec.observation, episode.observations, observation)
            store(spec.action, episode.actions, action)
            reward = np.asarray(episode.rewards, np.float32)
            is_lossy |= bool((reward != episode.rewards).any())
            terminated, truncated = bool(episode.terminations[-1]), bool(episode.truncations[-1])
            writer.append(episode_steps(observation, action, reward, (terminated, truncated or not terminated)))
    if is_lossy:
        warnings.warn(f"{name}: rewards of 64 bits are rounded to 32 bits", stacklevel=2)


def _load(minari: Any, name: str) -> Any:
    directory = Path(name)
    if directory.is_dir():
        return minari.MinariDataset(directory / "data" if (directory / "data").is_dir() else directory)
    try:
        return minari.load_dataset(name)
    except (FileNotFoundError, ValueError) as error:
        known = ", ".join(sorted(minari.list_local_datasets())) or "none"
        raise UserError(f"there is no local Minari dataset {name!r} (there are: {known}): {error}") from error


def to_minari(dataset: Dataset, dataset_id: str) -> int:
    """Creates a dataset of Minari from the whole episodes; returns their number.

    Args:
        dataset: Dataset of single frames.
        dataset_id: such as "jaxsrl/hopper/medium-v0".

    Raises:
        UserError: If the id is none, Minari has such a dataset already, or the dataset has several agents or no whole episode.
    """
    minari = import_minari()
    namespace = _parse_namespace(minari, dataset_id)
    if dataset_id in minari.list_local_datasets():
        raise UserError(
            f"there is a Minari dataset {dataset_id!r} already: minari delete {dataset_id}, or choose another id"
        )
    manifest, steps = dataset.manifest, dataset.steps
    spec, episodes = manifest.spec, find_episodes(steps)
    if any("/" in str(key) for part in (spec.observation, spec.action) for path, _ in items(part) for key in path):
        raise UserError(
            f"Minari cannot store names with a slash: rename the parts of {spec.env_id}'s observation and action"
        )
    if not len(episodes.returns):
        raise UserError(f"{dataset.path} has no whole episode to convert")
    if spec.agents:
        raise UserError(f"Minari has no episodes of several agents: {dataset.path} has {len(spec.agents)} of them")
    buffers = []
    for number, (row, begin, end) in enumerate(zip(episodes.row, episodes.begin, episodes.end, strict=True)):
        at, observed = (slice(begin, end), row), (slice(begin, end + 1), row)
        infos = {name: np.asarray(extra[at]) for name, extra in steps.extras.items()}
        buffer = minari.data_collector.EpisodeBuffer(
            id=number,
            observations=restored(spec.observation, take(steps.observation, observed)),
            actions=restored(spec.action, take(steps.action, at)),
            rewards=_restore_rewards(np.asarray(steps.reward[at]), manifest.origin.get(_REWARD_DTYPE, "float64")),
            terminations=np.asarray(steps.terminated[at]),
            truncations=np.asarray(steps.truncated[at]),
            infos=infos,
        )
        buffers.append(buffer)
    if namespace is not None and namespace not in minari.namespace.list_local_namespaces():
        minari.namespace.create_namespace(namespace)
    with make_directory(minari.storage.get_dataset_path(dataset_id)) as directory:
        # Minari writes into the place that it reads from, and appends a relative one twice. It lists no hidden directories.
        hidden = directory.with_name(".minari").absolute()
        with _minari_path(hidden):
            _create(minari, dataset_id, manifest, buffers)
        (hidden / dataset_id).rename(directory)
    return len(buffers)


def _restore_rewards(stored: np.ndarray, dtype: str) -> np.ndarray:
    """Returns rewards in the dtype that Minari's had; in float64 if it does not hold them."""
    given = stored.astype(dtype)
    return given if (given == stored).all() else stored.astype(np.float64)


def _parse_namespace(minari: Any, dataset_id: str) -> str | None:
    try:
        return minari.dataset.minari_dataset.parse_dataset_id(dataset_id)[0]
    except (TypeError, ValueError) as error:  # the former without a version
        raise UserError(
            f"expected an id of Minari such as jaxsrl/hopper/medium-v0: got {dataset_id!r}; use --out with one"
        ) from error


@contextlib.contextmanager
def _minari_path(path: Path) -> Iterator[None]:
    """Makes Minari keep its datasets at this path until the block ends."""
    before = os.environ.get(_PATH)
    os.environ[_PATH] = str(path)
    try:
        yield
    finally:
        del os.environ[_PATH]
        if before is not None:
            os.environ[_PATH] = before


def _create(minari: Any, dataset_id: str, manifest: Manifest, buffers: list[Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about an author, a link and an environment of evaluation
        created = minari.create_dataset_from_buffers(
            dataset_id=dataset_id,
            buffer=buffers,
            env=_spec_of_env(manifest.env),
            observation_space=space_of_spec(manifest.spec.observation),
            action_space=space_of_spec(manifest.spec.action),
            algorithm_name=str(manifest.origin.get("agent", "")),
            description=json.dumps(dict(manifest.origin)),
            data_format="hdf5",
            jpeg_encoding=False,  # images stay as they are
        )
    scores = {"ref_min_score": manifest.score_random, "ref_max_score": manifest.score_expert}
    created.storage.update_metadata({name: score for name, score in scores.items() if score is not None})


def _env_of_spec(env_spec: EnvSpec | None) -> dict[str, str] | None:
    """Returns the fields of `EnvConfig` for an environment of Gymnasium; None for none."""
    if env_spec is None:
        return None
    kwargs = {name: value for name, value in env_spec.kwargs.items() if name != "render_mode"}
    registered, limit = gymnasium.registry.get(env_spec.id), env_spec.max_episode_steps
    if limit and registered is not None and limit != registered.max_episode_steps:
        kwargs["max_episode_steps"] = limit
    return {"id": env_spec.id, "suite": "gymnasium"} | ({"kwargs": json.dumps(kwargs)} if kwargs else {})


def _spec_of_env(env: Mapping[str, Any] | None) -> EnvSpec | None:
    """Returns the inverse of `_env_of_spec`; None where the environment is not one of Gymnasium as it is registered."""
    env_id, suite = (env or {}).get("id", ""), (env or {}).get("suite", "auto")
    suite = suite_of_id(env_id) if suite == "auto" else suite
    if env is None or suite != "gymnasium" or env_id not in gymnasium.registry:
        return None
    env_spec, kwargs = copy.deepcopy(gymnasium.spec(env_id)), json.loads(env.get("kwargs", "{}"))
    for name in ("max_episode_steps", "disable_env_checker"):  # of `gymnasium.make` itself
        setattr(env_spec, name, kwargs.pop(name, getattr(env_spec, name)))
    env_spec.kwargs |= kwargs
    return env_spec


def space_of_spec(spec: SpecTree) -> gymnasium.Space:
    """Returns the space of one frame of each leaf of a spec."""
    if is_dict(spec):
        return spaces.Dict({key: space_of_spec(child) for key, child in spec.items()})
    if is_tuple(spec):
        return spaces.Tuple([space_of_spec(child) for child in spec])
    leaf: LeafSpec = spec
    if isinstance(leaf, DiscreteSpec):
        return spaces.Discrete(leaf.num_values, start=leaf.start, dtype=np.dtype(leaf.source_dtype).type)
    if isinstance(leaf, ArraySpec):
        return _box(leaf)
    if leaf.source_dtype == "int8" and {*leaf.num_values} == {2} and not any(leaf.start):
        return spaces.MultiBinary(leaf.shape[0] if len(leaf.shape) == 1 else leaf.shape)
    sizes, starts = np.reshape(leaf.num_values, leaf.shape), np.reshape(leaf.start, leaf.shape)
    return spaces.MultiDiscrete(sizes, np.dtype(leaf.source_dtype).type, start=starts)


def _box(leaf: ArraySpec) -> spaces.Box:
    dtype = np.dtype(leaf.source_dtype)
    if dtype.kind == "f":
        least, most = -np.inf, np.inf
    elif dtype.kind == "b":
        least, most = 0, 1
    else:
        least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    bounds = [leaf.bound("low"), leaf.bound("high")]
    low, high = (
        np.broadcast_to(np.asarray(default if bound is None else bound, dtype), leaf.stored_shape)
        for bound, default in zip(bounds, (least, most), strict=True)
    )
    return spaces.Box(low, high, leaf.stored_shape, dtype.type)
