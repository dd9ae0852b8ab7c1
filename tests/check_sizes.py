"""Fails on files over 400 lines and functions over 60: more means that a type or a file is missing."""

import ast
import subprocess
import sys
from pathlib import Path

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60


def problems(path: Path, text: str) -> list[str]:
    """What is too long in one source file."""
    found: list[str] = []
    lines = text.count("\n")
    if lines > MAX_FILE_LINES:
        found.append(f"{path}: {lines} lines, at most {MAX_FILE_LINES}")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > MAX_FUNCTION_LINES:
                found.append(f"{path}:{node.lineno}: {node.name} has {length} lines, at most {MAX_FUNCTION_LINES}")
    return found


def main() -> int:
    """Checks every tracked Python file; returns the exit status."""
    tracked = subprocess.run(["git", "ls-files", "*.py"], capture_output=True, text=True, check=True).stdout.split()
    found = [line for name in tracked if Path(name).exists() for line in problems(Path(name), Path(name).read_text())]
    print("\n".join(found) if found else f"sizes: {len(tracked)} files within limits")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
