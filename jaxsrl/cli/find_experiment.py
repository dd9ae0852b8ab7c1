"""Lookup of experiments by name: Python files in `experiments/` of the working directory, and those of the package."""

import ast
import difflib
from pathlib import Path

from envpool_bridge.errors import UserError

FOLDER = "experiments"


def experiment_folders() -> list[Path]:
    """Returns the folders that are searched, in order: the working directory's, then the one next to the package."""
    folders = [Path(FOLDER), Path(__file__).resolve().parents[2] / FOLDER]
    by_place = {folder.resolve(): folder for folder in reversed(folders) if folder.is_dir()}
    return [folder for folder in folders if folder in by_place.values()]


def list_experiments() -> dict[str, Path]:
    """Returns files by name, sorted; for a duplicate name the file that `find_experiment` returns."""
    files: dict[str, Path] = {}
    for folder in experiment_folders():
        for path in folder.glob("*.py"):
            if not path.name.startswith("_"):
                files.setdefault(path.stem, path)
    return dict(sorted(files.items()))


def find_experiment(name: str) -> Path:
    """Returns the file of an experiment.

    Args:
        name: path of a Python file, or a name of `list_experiments`; hyphens stand for underscores.

    Raises:
        UserError: If there is no such file; the message lists similar names.
    """
    path = Path(name)
    if path.is_file():
        return path
    if path.suffix == ".py" or len(path.parts) != 1:
        raise UserError(f"there is no file {path} in {Path.cwd()}: check the path")
    known = list_experiments()
    wanted = name.replace("-", "_")
    if wanted in known:
        return known[wanted]
    raise UserError(f"there is no experiment {name!r}: {_advice(wanted, list(known))}")


def read_summary(path: Path) -> str:
    """Returns the first line of a Python file's docstring without running it; "" if there is none."""
    try:
        text = ast.get_docstring(ast.parse(path.read_text()))
    except (OSError, ValueError, SyntaxError):
        return ""
    return text.splitlines()[0] if text else ""


def _advice(name: str, known: list[str]) -> str:
    if not known:
        return f"expected a Python file, or a name in {FOLDER}/, which is neither here nor next to the package"
    close = difflib.get_close_matches(name, known, n=3)
    close += [other for other in known if name in other and other not in close]
    if close:
        return f"did you mean {' or '.join(close[:6])}?"
    return (
        f"`jaxsrl train --list` shows all experiments ({', '.join(known[:3])}, ...); a path of a Python file also works"
    )
