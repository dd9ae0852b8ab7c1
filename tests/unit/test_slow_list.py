"""The list of slow tests names tests that exist."""

import re
from pathlib import Path

from tests.lint.slow_tests import KEPT, SLOW

ROOT = Path(__file__).parents[2]


def test_slow_list_names_existing_tests():
    for line in SLOW.read_text().splitlines():
        path, _, name = line.removeprefix(KEPT).partition("::")
        function = re.escape(name.partition("[")[0])
        assert re.search(rf"^def {function}\(", (ROOT / path).read_text(), re.MULTILINE), line
