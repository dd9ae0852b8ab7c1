"""The size limits: one line too many is reported, the limit itself is not."""

import importlib.util
from pathlib import Path

import pytest

_SPEC = importlib.util.spec_from_file_location("sizes", Path(__file__).parents[2] / "lint/sizes.py")
assert _SPEC is not None
assert _SPEC.loader is not None
sizes = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(sizes)


@pytest.mark.parametrize(("lines", "rejected"), [(400, False), (401, True)])
def test_sizes_allow_files_of_400_lines(lines, rejected):
    assert bool(sizes.violations(Path("x.py"), "a = 1\n" * lines)) is rejected


@pytest.mark.parametrize(("lines", "rejected"), [(60, False), (61, True)])
@pytest.mark.parametrize("keyword", ["def", "async def"])
def test_sizes_allow_functions_of_60_lines(keyword, lines, rejected):
    text = f"{keyword} f():\n" + "    a = 1\n" * (lines - 1)
    assert bool(sizes.violations(Path("x.py"), text)) is rejected


def test_sizes_name_a_long_method_with_its_line():
    text = "class C:\n    def long(self):\n" + "        a = 1\n" * 60
    assert sizes.violations(Path("x.py"), text) == ["x.py:2: long has 61 lines, at most 60"]


def test_sizes_count_words_outside_code_and_marks():
    code = "```\nnot counted\n```\n- `jaxsrl view`, 3 &\n  ```python\n  nor this\n  ```\n"
    page = f"# One heading\n\n| `two` | - |\n|---|---|\n\n{code}"
    assert sizes.prose_words(page) == 6


@pytest.mark.parametrize(("words", "rejected"), [(31_500, False), (31_501, True)])
def test_sizes_allow_documentation_of_31500_words(words, rejected):
    pages = {Path("docs/a.md"): "word " * 20_000, Path("docs/b/c.md"): "word " * (words - 20_000)}
    pages[Path("docs/lab/d.md")] = pages[Path("docs/results.md")] = "word " * 100
    message = "docs: 31,501 words, at most 31,500: say each fact once, link to it, or move runs to docs/lab"
    assert sizes.docs_violations(pages) == ([message] if rejected else [])
