"""Versions of distributions, and conflicts over the names `agents` and `experiments`, which others than jaxsrl use too.

The module imports none of the packages in question.
"""

import importlib.metadata
import importlib.util
from pathlib import Path

from envpool_bridge.errors import UserError

NAMES = ("agents", "experiments")
_HOME = Path(__file__).resolve().parents[2]
_REINSTALL = "in the checkout: pip install --force-reinstall --no-deps ."  # no index has jaxsrl


def find_conflict(home: Path = _HOME) -> str:
    """Returns which package takes the place of one of jaxsrl's, and what to do; "" if none does.

    A folder `experiments` that is searched earlier is no conflict, since jaxsrl reads its experiments by path.

    Args:
        home: directory of jaxsrl's packages.
    """
    for name in NAMES:
        file = home / name / "__init__.py"
        if not _is_ours(file):
            return _describe_overwritten(name, file)
    used = _import_location("agents")
    if used and used.resolve() != (home / "agents" / "__init__.py").resolve():
        return (
            f"the package `agents` of {used} shadows that of jaxsrl in {home}: rename it, remove its directory from "
            f"PYTHONPATH and sys.path, or run in another directory"
        )
    return ""


def find_version(distribution: str, missing: str = "unknown") -> str:
    """Returns the version of an installed distribution, or `missing`, as of a checkout that is only on the path of Python."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return missing


def raise_conflict() -> None:
    """Raises UserError if another package takes the place of one of jaxsrl's."""
    conflict = find_conflict()
    if conflict:
        raise UserError(conflict)


def find_shared_names(home: Path = _HOME) -> dict[str, list[str]]:
    """Returns the distributions that installed files into each of jaxsrl's packages, where others than jaxsrl did.

    Args:
        home: directory of jaxsrl's packages; distributions installed elsewhere are not searched.
    """
    owners: dict[str, set[str]] = {name: set() for name in NAMES}
    for distribution in importlib.metadata.distributions(path=[str(home)]):
        for top in {file.parts[0] for file in distribution.files or ()} & owners.keys():
            owners[top].add(distribution.metadata["Name"])
    return {name: sorted(names) for name, names in owners.items() if names - {"jaxsrl"}}


def describe_shared(name: str, owners: list[str]) -> str:
    """Returns the advice for a package that several distributions install."""
    others = " and ".join(owner for owner in owners if owner != "jaxsrl") or "another distribution"
    return (
        f"{others} installs files into jaxsrl's package `{name}` too: use a virtual environment for each; "
        f"here, uninstall {others}, then {_REINSTALL}"
    )


def _is_ours(file: Path) -> bool:
    try:
        return "jaxsrl" in file.read_text().partition("\n")[0]
    except OSError:
        return False


def _describe_overwritten(name: str, file: Path) -> str:
    if not file.is_file():
        return f"jaxsrl's package `{name}` is missing ({file}): {_REINSTALL}"
    owners = find_shared_names(file.parents[1]).get(name, [])
    return f"{file} is not jaxsrl's: {describe_shared(name, owners)}"


def _import_location(name: str) -> Path | None:
    """Returns the file that `import name` runs; None for a package that is not found or has no file."""
    try:
        spec = importlib.util.find_spec(name)
    except ValueError:  # it was imported in a way that left no spec
        return None
    return Path(spec.origin) if spec and spec.origin else None
