"""`jaxsrl dataset`."""

import dataclasses
import sys
from pathlib import Path
from typing import Annotated, Literal

import tyro

from envpool_bridge.errors import UserError
from jaxsrl.cli.unused_options import validate_unused
from jaxsrl.terminal.tables import print_tables

Action = Literal["info", "view", "verify", "convert", "merge", "score"]
_OPTIONS = {
    "info": ("json",),
    "view": ("out",),
    "verify": ("json",),
    "convert": ("out", "to", "max_episode_steps", "env_id", "json"),
    "merge": ("out", "best", "json"),
    "score": ("random", "expert", "json"),
}
"""Options of each action."""


@dataclasses.dataclass(frozen=True)
class DatasetCommand:
    """Look at a dataset, verify it, convert it from or to Minari's format, merge several, or set its scores.

    Attributes:
        action: "info" describes a dataset. "view" writes a page with its episodes and histograms of them. "verify" reads all of it
            and names damaged shards. "convert" writes a dataset of Minari, or with --to jaxsrl one from it. "merge" joins several.
            "score" sets the returns that count as 0 and 100.
        paths: directories of datasets; with --to jaxsrl, the id or directory of one of Minari, or a file of D4RL.
        out: convert, merge: directory to create; with --to minari the id, such as jaxsrl/hopper/medium-v0. view: file of the page,
            by default DATASET/view.html.
        to: convert: the format to write.
        max_episode_steps: convert: number of steps after which time ends an episode, for a file of D4RL without "timeouts".
        env_id: convert: id of the environment that a file of D4RL is of. Without it, actions are floats in [-1, 1].
        best: merge: share of the episodes to take, those with the highest returns.
        random: score: mean return of random actions.
        expert: score: mean return of an expert.
        json: print one JSON object instead of a table.
    """

    action: tyro.conf.Positional[Action]
    paths: Annotated[tuple[str, ...], tyro.conf.Positional]
    out: str = ""
    to: Literal["minari", "jaxsrl"] = "minari"
    max_episode_steps: int | None = None
    env_id: str = ""
    best: float = 1.0
    random: float | None = None
    expert: float | None = None
    json: bool = False

    def run(self) -> int:
        """Does the action; the exit status is 1 if a dataset is damaged."""
        from jaxsrl.datasets.manifest import CorruptDatasetError

        if not self.paths:
            raise UserError(f"jaxsrl dataset {self.action} needs a dataset: jaxsrl dataset {self.action} DIRECTORY")
        if len(self.paths) > 1 and self.action != "merge":
            raise UserError(f"jaxsrl dataset {self.action} takes one dataset: got {', '.join(self.paths)}")
        if self.action in ("convert", "merge") and not self.out:
            raise UserError(f"jaxsrl dataset {self.action} writes another dataset: use --out with it")
        others = {name for names in _OPTIONS.values() for name in names} - {*_OPTIONS[self.action]}
        validate_unused(self, sorted(others), f"jaxsrl dataset {self.action} has no use for options of other actions")
        try:
            return getattr(self, f"_{self.action}")()
        except CorruptDatasetError as error:
            print(f"error: damaged dataset: {error}", file=sys.stderr)  # noqa: T201
            return 1

    def _info(self) -> int:
        return self._print(Path(self.paths[0]))

    def _view(self) -> int:
        from jaxsrl.datasets.dataset import open_dataset
        from jaxsrl.datasets.page import dataset_page
        from jaxsrl.web.server import open_browser

        path = Path(self.paths[0])
        out = Path(self.out) if self.out else path / "view.html"
        out.write_text(dataset_page(open_dataset(path)))
        print(out)  # noqa: T201
        open_browser(out.resolve().as_uri())
        return 0

    def _verify(self) -> int:
        from jaxsrl.datasets.dataset import find_damage, open_dataset

        path, damage = Path(self.paths[0]), []
        for line in find_damage(path):
            damage.append(line)
            print(line, file=sys.stderr)  # noqa: T201
        shards = len(open_dataset(path).manifest.shards)
        result = {"dataset": str(path), "shards": shards, "damaged": len(damage)}
        print_tables(result, self.json, f"verification of {path}")
        return 1 if damage else 0

    def _convert(self) -> int:
        from envpool_bridge.envs.config import EnvConfig
        from jaxsrl.datasets.d4rl import from_d4rl
        from jaxsrl.datasets.dataset import open_dataset
        from jaxsrl.datasets.minari import from_minari, to_minari

        path = Path(self.paths[0])
        if self.to == "minari" or not path.is_file():
            validate_unused(self, ("max_episode_steps", "env_id"), "this is no file of D4RL")
        if self.to == "jaxsrl":
            if path.is_file():
                env = EnvConfig(self.env_id).with_suite() if self.env_id else None
                from_d4rl(path, Path(self.out), self.max_episode_steps, env)
            else:
                from_minari(self.paths[0], Path(self.out))
            return self._print(Path(self.out))
        episodes = to_minari(open_dataset(path), self.out)
        print_tables({"minari": self.out, "episodes": episodes}, self.json, f"conversion of {path}")
        return 0

    def _merge(self) -> int:
        from jaxsrl.datasets.episodes import merge

        merge([Path(path) for path in self.paths], Path(self.out), self.best)
        return self._print(Path(self.out))

    def _score(self) -> int:
        from jaxsrl.datasets.manifest import set_scores

        set_scores(Path(self.paths[0]), self.random, self.expert)
        return self._print(Path(self.paths[0]))

    def _print(self, path: Path) -> int:
        """Describes a dataset; returns the exit status."""
        from jaxsrl.datasets.dataset import describe, open_dataset

        print_tables(describe(open_dataset(path)), self.json, f"dataset {path}")
        return 0
