"""Doctests of every module that has examples in its docstrings."""

import doctest
import importlib
import io
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("agents", "envpool_bridge", "jaxsrl")
EXAMPLE = re.compile(r"^\s*>>> ", re.MULTILINE)
FILES = sorted(
    path for package in PACKAGES for path in (ROOT / package).rglob("*.py") if EXAMPLE.search(path.read_text())
)
MODULES = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in FILES]


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_are_true(name):
    module = importlib.import_module(name)
    printed, runner = io.StringIO(), doctest.DocTestRunner(optionflags=doctest.FAIL_FAST)
    for example in doctest.DocTestFinder().find(module, name):
        runner.run(example, out=printed.write)
    results = runner.summarize(verbose=False)
    assert results.attempted > 0
    assert results.failed == 0, printed.getvalue()


def test_every_package_has_examples():
    assert {name.split(".")[0] for name in MODULES} == set(PACKAGES)
