"""`jaxsrl new`."""

import ast
import dataclasses
import keyword
from pathlib import Path
from typing import Annotated

import tyro

from envpool_bridge.errors import UserError
from jaxsrl.cli.find_experiment import FOLDER, find_experiment


@dataclasses.dataclass(frozen=True)
class New:
    """Write experiments/NAME.py, a copy of another experiment to start from; `jaxsrl train NAME` runs it.

    Attributes:
        name: Name of the new experiment.
        source: name of the experiment, or file, that is copied.
    """

    name: tyro.conf.Positional[str]
    source: Annotated[str, tyro.conf.arg(name="from")] = "ppo_cartpole"

    def run(self) -> int:
        """Writes the file; rejects a name that is taken."""
        name = self.name.replace("-", "_")
        if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
            raise UserError(f"expected the name of a Python module such as my_experiment, got {self.name!r}")
        source, path = find_experiment(self.source), Path(FOLDER) / f"{name}.py"
        if path.exists():
            raise UserError(f"{path} exists already: choose another name, or delete it")
        text = _replace_docstring(source.read_text(), f'"""{name}: a copy of {source.stem}."""')
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        print(f"wrote {path}\n  jaxsrl train {name}")  # noqa: T201
        return 0


def _replace_docstring(text: str, docstring: str) -> str:
    tree, lines = ast.parse(text), text.splitlines(keepends=True)
    first = tree.body[0] if ast.get_docstring(tree) else None
    end = first.end_lineno or 0 if first else 0
    return docstring + "\n" + "".join(lines[end:])
