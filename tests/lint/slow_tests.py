"""Rewrites tests/slow.txt from the durations of a whole run, given on standard input.

    python -m pytest -m "not gpu" --durations=0 -vv | python tests/lint/slow_tests.py

Each line of the file is the id of a test that takes more than SECONDS. It runs in `make test-all` only, unless the line starts with
"+ ": such tests run in `make test` too, and their lines stay.
"""

import re
import sys
from collections import defaultdict
from pathlib import Path

SECONDS = 1.5
SLOW = Path(__file__).parents[1] / "slow.txt"
KEPT = "+ "
_LINE = re.compile(r"\s*([\d.]+)s (?:call|setup)\s+(tests/\S+?\.py::.+)$")


def slow_tests() -> set[str]:
    """Returns the ids of the tests that `make test` skips."""
    return {line for line in SLOW.read_text().splitlines() if line and not line.startswith(KEPT)}


def main() -> None:
    """Reads durations and writes the file."""
    seconds: dict[str, float] = defaultdict(float)
    for line in sys.stdin:
        if match := _LINE.match(line.rstrip()):
            seconds[match[2]] += float(match[1])
    kept = [line for line in SLOW.read_text().splitlines() if line.startswith(KEPT)]
    names = {line.removeprefix(KEPT) for line in kept}
    slow = [name for name in seconds if seconds[name] > SECONDS and name not in names]
    SLOW.write_text("".join(f"{line}\n" for line in sorted(kept) + sorted(slow)))


if __name__ == "__main__":
    main()
