"""Mutation tests: each patch in this directory breaks the code, and the tests that it names must fail.

Run: `python tests/chaos/mutants/run.py [NAME ...]`. Every patch is applied to a copy of the tree; the tests must pass
without it. Prints one line for each mutant, and ends with status 1 if one of them survived.
"""

import argparse
import contextlib
import os
import re
import shutil
import signal
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
_SECONDS = 300.0  # a mutant that makes tests hang counts as detected
_SECONDS_WITHOUT = 3_600.0  # for the tests of all mutants, which must pass on a busy machine too


def tests_of(patch: Path) -> list[str]:
    """Returns the test files that must detect this mutant.

    Raises:
        ValueError: the patch names none.
    """
    first = patch.read_text().splitlines()[0]
    if not first.startswith(NAMED):
        raise ValueError(f"{patch}: expected a first line '{NAMED}TEST ...', got {first!r}")
    return first.removeprefix(NAMED).split()


def copy_tree(to: Path) -> Path:
    """Copies the files that tests need."""
    for name in TREE:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, to / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, to / name)
    return to


def run_tests(tree: Path, tests: list[str], seconds: float) -> int:
    """Runs pytest in that tree and returns its exit status; 1 after `seconds`. `OUTPUT` holds the output."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--timeout", "120", *tests]
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    with (
        open(tree / OUTPUT, "w") as output,
        subprocess.Popen(
            command, cwd=tree, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        ) as process,
    ):
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return 1
        finally:  # with the processes that the tests have started
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def remove_names(names: set[str]) -> None:
    """Removes names of shared memory of dead processes, because a mutant may leak them."""
    for name in names:
        match = re.fullmatch(r"jaxsrl-(\d+)-[0-9a-f]+", name)
        if match is not None and not Path(f"/proc/{match[1]}").exists():
            (SHARED_MEMORY / name).unlink(missing_ok=True)


def is_detected(patch: Path) -> bool:
    """Returns whether the tests fail with the patch.

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
            raise RuntimeError(f"{patch.name} does not apply: fix the patch. {applied.stderr}")
        names = set(os.listdir(SHARED_MEMORY))
        status = run_tests(tree, tests_of(patch), _SECONDS)
        remove_names(set(os.listdir(SHARED_MEMORY)) - names)
    if status > 1:
        raise RuntimeError(f"{patch.name}: pytest could not run the tests (status {status})")
    return status == 1


def main() -> int:
    """Runs the command and returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="of patches, without .patch; all if none")
    names = parser.parse_args().names
    patches = [MUTANTS / f"{name}.patch" for name in names] or sorted(MUTANTS.glob("*.patch"))
    tests = sorted({test for patch in patches for test in tests_of(patch)})
    with tempfile.TemporaryDirectory() as directory:
        tree = copy_tree(Path(directory))
        if run_tests(tree, tests, _SECONDS_WITHOUT):
            print(f"the tests fail without any mutant:\n{(tree / OUTPUT).read_text()[-3000:]}", file=sys.stderr)
            return 1
    survived = 0
    for patch in patches:
        start = time.monotonic()
        detected = is_detected(patch)
        survived += not detected
        print(f"{'detected' if detected else 'SURVIVED'} {patch.stem} ({time.monotonic() - start:.0f} s)", flush=True)
    print(f"{len(patches) - survived} of {len(patches)} mutants detected")
    return int(survived > 0)


if __name__ == "__main__":
    sys.exit(main())
