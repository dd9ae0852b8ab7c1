"""Shows that the tests can see: each patch in this directory breaks something, and the tests that it names must fail.

Run: `python tests/chaos/mutants/run.py [NAME ...]`. Every patch is applied to a copy of the tree; the tests must pass without it.
Prints a line a mutant, and ends with status 1 if one of them lived.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[3]
MUTANTS = Path(__file__).parent
TREE = ("envpool_bridge", "agents", "jaxsrl", "experiments", "tests", "pyproject.toml")
SHARED_MEMORY = Path("/dev/shm")
OUTPUT = "output_of_the_tests.txt"
NAMED = "Must fail: "
_SECONDS = 300  # a mutant that makes tests hang is seen too


def tests_of(patch: Path) -> list[str]:
    """The test files that must see this mutant.

    Raises:
        ValueError: the patch names none.
    """
    first = patch.read_text().splitlines()[0]
    if not first.startswith(NAMED):
        raise ValueError(f"{patch}: expected a first line '{NAMED}TEST ...', got {first!r}")
    return first.removeprefix(NAMED).split()


def copy_tree(to: Path) -> Path:
    """A copy of what tests need."""
    for name in TREE:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, to / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, to / name)
    return to


def run_tests(tree: Path, tests: list[str]) -> int:
    """pytest's exit status in that tree, whose `OUTPUT` then says more; 1 if it does not end."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--timeout", "60", *tests]
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    with (
        open(tree / OUTPUT, "w") as output,
        subprocess.Popen(
            command, cwd=tree, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        ) as process,
    ):
        try:
            return process.wait(_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            return 1


def remove_names(names: set[str]) -> None:
    """Removes names of shared memory that processes which are gone have left: a mutant may be one that leaves them."""
    for name in names:
        found = re.fullmatch(r"jaxsrl-(\d+)-[0-9a-f]+", name)
        if found is not None and not Path(f"/proc/{found[1]}").exists():
            (SHARED_MEMORY / name).unlink(missing_ok=True)


def is_seen(patch: Path) -> bool:
    """Whether the tests fail once the patch is applied.

    Raises:
        RuntimeError: it does not apply, or pytest could not run the tests.
    """
    with tempfile.TemporaryDirectory() as directory:
        tree = copy_tree(Path(directory))
        applied = subprocess.run(
            ["git", "apply", "--unsafe-paths", f"--directory={tree}", str(patch)],
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
        )
        if applied.returncode:
            raise RuntimeError(f"{patch.name} does not apply: mend it. {applied.stderr}")
        names = set(os.listdir(SHARED_MEMORY))
        status = run_tests(tree, tests_of(patch))
        remove_names(set(os.listdir(SHARED_MEMORY)) - names)
    if status > 1:
        raise RuntimeError(f"{patch.name}: pytest could not run the tests (status {status})")
    return status == 1


def main() -> int:
    """The command; its exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="of patches, without .patch; all if none")
    names = parser.parse_args().names
    patches = [MUTANTS / f"{name}.patch" for name in names] or sorted(MUTANTS.glob("*.patch"))
    tests = sorted({test for patch in patches for test in tests_of(patch)})
    with tempfile.TemporaryDirectory() as directory:
        tree = copy_tree(Path(directory))
        if run_tests(tree, tests):
            print(f"the tests fail without any mutant:\n{(tree / OUTPUT).read_text()[-3000:]}", file=sys.stderr)
            return 1
    lived = 0
    for patch in patches:
        began = time.monotonic()
        seen = is_seen(patch)
        lived += not seen
        print(f"{'seen ' if seen else 'LIVED'} {patch.stem} ({time.monotonic() - began:.0f} s)", flush=True)
    print(f"{len(patches) - lived} of {len(patches)} mutants seen")
    return int(lived > 0)


if __name__ == "__main__":
    sys.exit(main())
