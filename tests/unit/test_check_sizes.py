"""The size check refuses one line too many, and nothing at its limit."""

import importlib.util
from pathlib import Path

import pytest

_SPEC = importlib.util.spec_from_file_location("check_sizes", Path(__file__).parents[1] / "check_sizes.py")
assert _SPEC is not None
assert _SPEC.loader is not None
check_sizes = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(check_sizes)


@pytest.mark.parametrize(("lines", "refused"), [(400, False), (401, True)])
def test_a_file_may_have_400_lines(lines, refused):
    assert bool(check_sizes.problems(Path("x.py"), "a = 1\n" * lines)) is refused


@pytest.mark.parametrize(("lines", "refused"), [(60, False), (61, True)])
@pytest.mark.parametrize("keyword", ["def", "async def"])
def test_a_function_may_have_60_lines(keyword, lines, refused):
    text = f"{keyword} f():\n" + "    a = 1\n" * (lines - 1)
    assert bool(check_sizes.problems(Path("x.py"), text)) is refused


def test_a_long_method_is_named_with_its_line():
    text = "class C:\n    def long(self):\n" + "        a = 1\n" * 60
    assert check_sizes.problems(Path("x.py"), text) == ["x.py:2: long has 61 lines, at most 60"]
