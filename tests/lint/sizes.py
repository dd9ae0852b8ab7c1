"""Size limits: files of at most 400 lines and functions of at most 60."""

import ast
import subprocess
import sys
from pathlib import Path

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60


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


def main() -> int:
    """Checks every tracked Python file and returns the exit status."""
    tracked = subprocess.run(["git", "ls-files", "*.py"], capture_output=True, text=True, check=True).stdout.split()
    listed = [
        line for name in tracked if Path(name).exists() for line in violations(Path(name), Path(name).read_text())
    ]
    print("\n".join(listed) if listed else f"sizes: {len(tracked)} files within limits")
    return 1 if listed else 0


if __name__ == "__main__":
    sys.exit(main())
