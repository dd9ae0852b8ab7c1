"""`jaxsrl models`."""

import contextlib
import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from envpool_bridge.errors import UserError
from jaxsrl.cli.unused_options import validate_unused
from jaxsrl.terminal.tables import print_tables

if TYPE_CHECKING:
    from jaxsrl.models.store import Model, ModelStore

_CHECK_SECONDS = 1.0


@dataclasses.dataclass(frozen=True)
class Models:
    """List the models of a run, or change their tags: versions of the learner state, found by number, tag or query.

    Attributes:
        run_directory: Run directory of the run, or a directory of models.
        query: list the model that this finds only: a tag, an update, "newest", or a condition such as "return>200".
        tag: NAME=QUERY makes a tag point to the model that the query finds.
        untag: name of a tag to remove.
        clone: copy the models (or the one of --query) with their tags into this directory, which must not exist.
        freeze: reject all changes from now on.
        unfreeze: accept changes again.
        collect: delete the models without a tag but this number of newest ones.
        serve: name by which other processes of a Ray cluster read and change these models, until Ctrl-C.
        json: print one JSON object instead of a table.
    """

    run_directory: tyro.conf.Positional[Path]
    query: str = ""
    tag: str = ""
    untag: str = ""
    clone: Path | None = None
    freeze: bool = False
    unfreeze: bool = False
    collect: int | None = None
    serve: str = ""
    json: bool = False

    def run(self) -> int:
        """Changes what is asked for, and prints the list."""
        store = self._open_store()
        if self.unfreeze:
            store.freeze(False)
        if self.tag:
            name, equals, query = self.tag.partition("=")
            if not equals:
                raise UserError(f"--tag needs NAME=QUERY, such as best=12000: got {self.tag!r}")
            store.tag(name, query)
        if self.untag:
            store.untag(self.untag)
        removed = {} if self.collect is None else {"removed": store.collect_garbage(self.collect)}
        if self.clone is not None:
            store.clone(self.clone, self.query)
        if self.freeze:
            store.freeze()
        if self.serve:
            return _serve(store.directory, self.serve)
        models = [store.find(self.query)] if self.query else store.models()
        result = {**removed, "models": [_row(model) for model in models]}
        print_tables(result, self.json, f"models of {self.run_directory}")
        return 0

    def _open_store(self) -> "ModelStore":
        """Returns the models of the directory.

        Raises:
            UserError: If there is no such directory, or options have no effect.
        """
        from jaxsrl.models.store import ModelStore

        if self.serve:
            unused = ("json",) if self.clone is not None else ("query", "json")
            validate_unused(self, unused, "--serve serves all models and prints no list")
        if self.collect is not None:
            validate_unused(self, ("query",), "--collect deletes by tag and age alone")
        if self.freeze:
            validate_unused(self, ("unfreeze",), "--freeze ends with frozen models")
        return ModelStore(_find_store(self.run_directory))


def _find_store(directory: Path) -> Path:
    """Returns the directory of models of a run, or a directory that is one.

    Raises:
        UserError: If there is neither.
    """
    from jaxsrl.models.index import INDEX, read_index
    from jaxsrl.models.store import MODELS
    from jaxsrl.runs.summary import is_run

    if is_run(directory):
        return directory / MODELS  # empty before the first model
    for store in (directory / MODELS, directory):
        if (store / INDEX).is_file():
            read_index(store)
            return store
    raise UserError(f"no models in {directory}: expected a run directory, or a directory that --clone has made")


def _serve(directory: Path, name: str) -> int:
    """Serves a store in the running Ray cluster until Ctrl-C."""
    from jaxsrl.cluster.ray.local_cluster import joined_cluster
    from jaxsrl.cluster.ray.models import served_models

    with contextlib.ExitStack() as held:
        try:
            held.enter_context(joined_cluster("--serve"))
        except UserError as error:
            if isinstance(error.__cause__, ImportError):
                raise
            raise UserError(
                f"--serve needs a running Ray cluster, and found none ({error.__cause__}): start one with `ray start --head`, or "
                "set RAY_ADDRESS"
            ) from error
        held.enter_context(contextlib.suppress(KeyboardInterrupt))
        store = held.enter_context(served_models(directory, name))
        print(f"{directory} is served as {name}\nCtrl-C ends this", flush=True)  # noqa: T201
        while True:
            time.sleep(_CHECK_SECONDS)
            store.tags()  # raises if the store is lost
    return 0


def _row(model: "Model") -> dict[str, Any]:
    from jaxsrl.models.store import DAMAGE

    result = "damaged" if DAMAGE in model.metadata else model.metadata.get("return")
    return {
        "update": model.version,
        "env_steps": model.env_steps,
        "return": "" if result is None else result,
        "tags": " ".join(model.tags),
        "path": str(model.path),
    }
