"""The list of slow tests names tests that exist, and none that a mutant needs."""

import re
from pathlib import Path

from tests.lint.slow_tests import KEPT, SLOW, slow_tests

ROOT = Path(__file__).parents[2]


def test_slow_list_names_existing_tests():
    for line in SLOW.read_text().splitlines():
        path, _, name = line.removeprefix(KEPT).partition("::")
        function = re.escape(name.partition("[")[0])
        assert re.search(rf"^def {function}\(", (ROOT / path).read_text(), re.MULTILINE), line


def test_slow_list_has_no_tests_of_mutants():
    named = {
        test
        for patch in (ROOT / "tests/chaos/mutants").glob("*.patch")
        for test in patch.read_text().splitlines()[0].removeprefix("Must fail: ").split()
    }
    assert not [line for line in slow_tests() if line.partition("::")[0] in named]
