"""Tables of the reference pages, which a hook of mkdocs makes from the dataclasses."""

import dataclasses
import importlib.util
import re
from pathlib import Path

import pytest
import tyro

from jaxsrl.cli.main import COMMANDS
from jaxsrl.config.run_config import RunConfig

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("generated_reference", ROOT / "docs" / "generated_reference.py")
assert SPEC is not None
assert SPEC.loader is not None
HOOK = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(HOOK)


def printed_help(capsys, monkeypatch):
    """Returns what `--help` of an experiment prints of RunConfig, which tyro makes, without line breaks in flags."""
    monkeypatch.setenv("COLUMNS", "400")
    with pytest.raises(SystemExit):
        tyro.cli(Holder, args=["--help"])
    return capsys.readouterr().out


@dataclasses.dataclass(frozen=True)
class Holder:
    """Names the prefix of RunConfig's flags, as experiments do."""

    run: RunConfig = dataclasses.field(default_factory=RunConfig)


def test_configuration_lists_every_flag_once(capsys, monkeypatch):
    page = HOOK.on_page_markdown("before\n<!-- generated: configuration -->\nafter")
    assert page.startswith("before\n## run\n")
    assert page.endswith("\nafter")
    listed = re.findall(r"^\| `(--[\w.-]+)` \|", page, re.MULTILINE)
    printed = set(re.findall(r"--[a-z-]+\.[a-z.-]*[a-z]", printed_help(capsys, monkeypatch)))
    positive = {flag for flag in printed if ".no-" not in flag}
    assert sorted(listed) == sorted(set(listed))
    assert positive - set(listed) == set()
    assert set(listed) - printed == set()


def test_every_field_of_the_reference_is_described():
    rows = [line for line in HOOK.configuration().splitlines() if line.startswith("| `--")]
    assert [row for row in rows if row.split("|")[-2].strip().startswith("`")] == []


def test_commands_page_has_a_table_for_each_command():
    page = HOOK.commands()
    kinds = {kind.__name__ for name, kind in COMMANDS.items() if name != "bench"}
    assert {line.removeprefix("### ") for line in page.splitlines() if line.startswith("### ")} == kinds
