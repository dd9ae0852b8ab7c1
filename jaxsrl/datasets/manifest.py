"""Manifest of a dataset: what its files hold, where they come from, and their checksums."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from envpool_bridge.errors import UserError
from envpool_bridge.shm.layout import field_name
from envpool_bridge.spec.specs import ArraySpec, EnvSpec, spec_from_dict, spec_to_dict
from envpool_bridge.spec.tree import items
from jaxsrl.checkpoints.run_directory import write_json

MANIFEST = "manifest.json"
FORMAT, VERSION = "jaxsrl dataset", 1
OBSERVED = ("observation", "is_first")
"""First parts of the names of leaves with one value more than there are steps: the observation after the last step."""


class CorruptDatasetError(Exception):
    """A file of a dataset is missing or damaged."""


@dataclasses.dataclass(frozen=True)
class Shard:
    """Steps that were written together.

    Attributes:
        end: number of steps of a row up to the end of the shard.
        checksums: CRC-32 of the shard's bytes in the file of each leaf, by the leaf's name; none of a leaf whose values were
            being replaced when the writer was killed.
        tails: CRC-32 of the value after the shard's last step, by the name of an observed leaf; earlier versions had none.
    """

    end: int
    checksums: Mapping[str, int]
    tails: Mapping[str, int] = dataclasses.field(default_factory=dict[str, int])


@dataclasses.dataclass(frozen=True)
class Manifest:
    """Contents of a dataset.

    Attributes:
        spec: Specification of a row.
        num_rows: R, rows of steps that follow each other.
        extras: values that the acting agent added to each step, by name.
        shards: Shards in the order of their steps.
        env: configuration of the environment as JSON data; None if it was a function.
        origin: Origin of the steps: agent, run, update, seed and the like.
        score_random: mean return of random actions; None if unknown.
        score_expert: mean return that counts as 100 of the normalized score; None if unknown.
    """

    spec: EnvSpec
    num_rows: int
    extras: Mapping[str, ArraySpec] = dataclasses.field(default_factory=dict[str, ArraySpec])
    shards: tuple[Shard, ...] = ()
    env: Mapping[str, Any] | None = None
    origin: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    score_random: float | None = None
    score_expert: float | None = None

    @property
    def num_steps(self) -> int:
        """S, number of steps of each row."""
        return self.shards[-1].end if self.shards else 0

    def leaves(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Returns dtype and shape, without step and row axes, of each array by its name."""
        flags = dict.fromkeys(("is_first", "terminated", "truncated", "valid"), ("bool", ()))
        numbers = {"reward": (self.spec.reward_dtype, ()), "policy_version": ("int32", ())}
        trees = {
            field_name(part, path): (leaf.dtype, leaf.stored_shape)
            for part in ("observation", "action")
            for path, leaf in items(getattr(self.spec, part))
        }
        extras = {f"extras/{name}": (extra.dtype, extra.shape) for name, extra in sorted(self.extras.items())}
        return {**trees, **flags, **numbers, **extras}

    def normalized_score(self, mean_return: float) -> float | None:
        """Returns 100 (J - J_random) / (J_expert - J_random) (Fu et al. 2020, D4RL); None if a score is unknown."""
        if self.score_random is None or self.score_expert is None:
            return None
        return 100.0 * (mean_return - self.score_random) / (self.score_expert - self.score_random)


def leaf_file(name: str) -> str:
    """Returns the file of a leaf, relative to the dataset's directory."""
    return "/".join(quote(part, safe="") for part in name.split("/")) + ".npy"


def is_observed(name: str) -> bool:
    """Returns whether a leaf has a value after the last step."""
    return name.partition("/")[0] in OBSERVED


def read_manifest(path: Path) -> Manifest:
    """Reads the manifest of a dataset's directory.

    Raises:
        UserError: If there is none, or another version of jaxsrl wrote it.
        CorruptDatasetError: If it cannot be read.
    """
    file = path / MANIFEST
    if not file.exists():
        raise UserError(f"expected the directory of a dataset, with {MANIFEST}: got {path}")
    try:
        data = json.loads(file.read_text())
        if (data["format"], data["version"]) != (FORMAT, VERSION):
            raise UserError(
                f"{file}: expected {FORMAT!r}, version {VERSION}: got {data['format']!r}, {data['version']}"
            )
        fields = {name: data[name] for name in ("num_rows", "env", "origin", "score_random", "score_expert")}
        extras = {name: ArraySpec(tuple(extra["shape"]), extra["dtype"]) for name, extra in data["extras"].items()}
        shards = tuple(Shard(**shard) for shard in data["shards"])
        return Manifest(spec=spec_from_dict(data["spec"]), extras=extras, shards=shards, **fields)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise CorruptDatasetError(f"{file} cannot be read: {error!r}") from error


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Writes the manifest so that a reader finds the old one or the new one, whenever this process ends."""
    extras = {name: {"shape": list(extra.shape), "dtype": extra.dtype} for name, extra in manifest.extras.items()}
    data = {
        "format": FORMAT,
        "version": VERSION,
        "num_steps": manifest.num_steps,
        "num_rows": manifest.num_rows,
        "env": manifest.env,
        "origin": manifest.origin,
        "score_random": manifest.score_random,
        "score_expert": manifest.score_expert,
        "spec": spec_to_dict(manifest.spec),
        "extras": extras,
        "shards": [dataclasses.asdict(shard) for shard in manifest.shards],
    }
    write_json(path / MANIFEST, data)


def set_scores(path: Path, random: float | None = None, expert: float | None = None) -> None:
    """Sets the returns that count as 0 and as 100 in the normalized score; None keeps one.

    Raises:
        UserError: If the directory holds no dataset, no return is given, or both would be equal.
        CorruptDatasetError: If its manifest cannot be read.
    """
    given = {"score_random": random, "score_expert": expert}
    changes = {name: score for name, score in given.items() if score is not None}
    if not changes:
        raise UserError("expected a mean return of random actions, of an expert, or both: use --random, --expert")
    manifest = dataclasses.replace(read_manifest(path), **changes)
    if manifest.score_random is not None and manifest.score_random == manifest.score_expert:
        raise UserError(
            f"the returns that count as 0 and as 100 must differ: got {manifest.score_random:g} for both; use --random, --expert"
        )
    write_manifest(path, manifest)
