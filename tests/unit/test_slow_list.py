"""The list of slow tests names tests that exist, and none that a mutant needs; all mutants fit the code."""

import re
import subprocess
from pathlib import Path

from tests.lint.slow_tests import KEPT, SLOW, slow_tests

ROOT = Path(__file__).parents[2]


def test_slow_list_names_existing_tests():
    for line in SLOW.read_text().splitlines():
        path, _, name = line.removeprefix(KEPT).partition("::")
        function = re.escape(name.partition("[")[0])
        assert re.search(rf"^def {function}\(", (ROOT / path).read_text(), re.MULTILINE), line


def test_every_mutant_applies():
    patches = sorted((ROOT / "tests/chaos/mutants").glob("*.patch"))
    command = ["git", "apply", "--check", "--unsafe-paths", f"--directory={ROOT}"]
    done = [subprocess.run([*command, str(patch)], cwd="/", capture_output=True, check=False) for patch in patches]
    assert patches
    assert not {patch.name: ran.stderr for patch, ran in zip(patches, done, strict=True) if ran.returncode}


def test_slow_list_has_no_tests_of_mutants():
    named = {
        test
        for patch in (ROOT / "tests/chaos/mutants").glob("*.patch")
        for test in patch.read_text().splitlines()[0].removeprefix("Must fail: ").split()
    }
    assert not [line for line in slow_tests() if line.partition("::")[0] in named]
