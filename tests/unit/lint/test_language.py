"""The language rules: each reports its violation with file and line, and accepts the plain form."""

import importlib.util
import sys
from pathlib import Path

import pytest

_SPEC = importlib.util.spec_from_file_location("language", Path(__file__).parents[2] / "lint/language.py")
assert _SPEC is not None
assert _SPEC.loader is not None
language = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(language)

LONG = "This sentence is " + "very " * 30 + "long."


@pytest.fixture
def listed(tmp_path, monkeypatch):
    """Returns a function that writes a file and lists its violations."""
    monkeypatch.chdir(tmp_path)

    def write(name, text):
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return [str(violation) for violation in language.violations(path)]

    return write


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('def f():\n    """What f computes."""\n', "x.py:2: docstring starts with 'What'"),
        ('class C:\n    """As D says."""\n', "x.py:2: docstring starts with 'As'"),
        (
            'def f():\n    """The result."""\n',
            "x.py:2: function docstring starts with 'The', not with a third-person verb",
        ),
        (
            'def f():\n    """Rows of a batch."""\n',
            "x.py:2: function docstring starts with 'Rows', not with a third-person verb",
        ),
        (
            'class C:\n    def __init__(self):\n        """Args."""\n',
            "x.py:3: docstring on __init__: describe the arguments in the class docstring",
        ),
        (
            'class C:\n    """Words.\n\n    Attributes:\n        plan: to execute.\n    """\n',
            "x.py:5: entry 'plan' does not stand alone: 'plan: Plan of the run.', not 'plan: of the run.'",
        ),
        ("a = 1  # nobody polls\n", "x.py:1: banned: 'nobody'"),
        ("f('the run goes on')\n", "x.py:1: banned: 'goes on'"),
        ("f(f'{a} was refused')\n", "x.py:1: banned: 'refused'"),
        ("has_begun = 1\n", "x.py:1: name 'has_begun' has 'begun'"),
        (
            "found = 1\n",
            "x.py:1: name 'found': name the content (not found), format_ (not _in_words), validate_ (not require_)",
        ),
        ("def normalise():\n    pass\n", "x.py:1: name 'normalise': American spelling"),
        (f'"""A module.\n\n{LONG}\n"""\n', "x.py:3: sentence of 34 words, at most 30"),
    ],
)
def test_language_reports_product_violations(listed, text, message):
    assert listed("jaxsrl/x.py", text) == [f"jaxsrl/{message}"]


def test_language_accepts_plain_product_code(listed):
    text = '"""Numbers."""\n\n\nclass C:\n    """One number."""\n\n    @property\n    def double(self):\n'
    text += '        """Twice the number."""\n\n    def increase(self):\n        """Adds one."""\n'
    text += '        return "connection refused"\n'
    assert listed("agents/x.py", text) == []


def test_language_limits_sentences_of_pages_outside_code(listed):
    text = f"# {LONG}\n\n```\n{LONG * 2}\n```\n| {LONG * 2} |\n- One fact.\n- {LONG}\n"
    assert listed("docs/x.md", text) == [f"docs/x.md:{line}: sentence of 34 words, at most 30" for line in (1, 8)]


@pytest.mark.parametrize(("length", "rejected"), [(60, False), (61, True)])
def test_language_limits_test_names(listed, length, rejected):
    name = "test_" + "x" * (length - 5)
    assert bool(listed("tests/unit/test_x.py", f"def {name}():\n    pass\n")) is rejected


def test_language_lint_lists_violations_of_paths(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["language.py", "tests/lint"])
    assert language.main() == 0
    assert capsys.readouterr().out == "language: no violations\n"
