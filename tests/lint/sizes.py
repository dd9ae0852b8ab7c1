"""Size limits: lines of files and functions, words of the documentation."""

import ast
import re
import subprocess
import sys
from pathlib import Path

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_DOCS_WORDS = 31_500  # docs/ without docs/lab and the page of results
_RESULTS = Path("docs/results.md")  # made by a command


def violations(path: Path, text: str) -> list[str]:
    """Returns one line for the file and for each of its functions that is too long."""
    listed: list[str] = []
    lines = text.count("\n")
    if lines > MAX_FILE_LINES:
        listed.append(f"{path}: {lines} lines, at most {MAX_FILE_LINES}")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > MAX_FUNCTION_LINES:
                listed.append(f"{path}:{node.lineno}: {node.name} has {length} lines, at most {MAX_FUNCTION_LINES}")
    return listed


def prose_words(page: str) -> int:
    """Returns the number of words of a page outside fenced code blocks; a word has a letter or a digit."""
    prose = re.sub(r"^[ \t]*(```|~~~).*?^[ \t]*\1[ \t]*$", "", page, flags=re.DOTALL | re.MULTILINE)
    return sum(bool(re.search(r"[A-Za-z0-9]", word)) for word in prose.split())


def docs_violations(pages: dict[Path, str]) -> list[str]:
    """Returns one line if the pages of the documentation have too many words, without the lab and the page of results."""
    written = {path: text for path, text in pages.items() if path.parts[:2] != ("docs", "lab") and path != _RESULTS}
    words = sum(map(prose_words, written.values()))
    if words <= MAX_DOCS_WORDS:
        return []
    return [
        f"docs: {words:,} words, at most {MAX_DOCS_WORDS:,}: say each fact once, link to it, or move runs to docs/lab"
    ]


def tracked_texts(pattern: str) -> dict[Path, str]:
    """Returns the tracked files that match a pattern and exist, with their texts."""
    names = subprocess.run(["git", "ls-files", "-z", pattern], capture_output=True, text=True, check=True).stdout
    return {Path(name): Path(name).read_text() for name in names.split("\0") if name and Path(name).exists()}


def main() -> int:
    """Checks every tracked Python file and the documentation, and returns the exit status."""
    tracked = tracked_texts("*.py")
    listed = [line for path, text in tracked.items() for line in violations(path, text)]
    listed += docs_violations(tracked_texts("docs/*.md"))
    print("\n".join(listed) if listed else f"sizes: {len(tracked)} files within limits")
    return 1 if listed else 0


if __name__ == "__main__":
    sys.exit(main())
