"""Tables of the reference pages, which a hook of mkdocs makes from the dataclasses."""

import dataclasses
import importlib.util
from pathlib import Path

from jaxsrl.cli.main import COMMANDS
from jaxsrl.config.run_config import RunConfig

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("generated_reference", ROOT / "docs" / "generated_reference.py")
assert SPEC is not None
assert SPEC.loader is not None
HOOK = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(HOOK)


def flags(kind, prefix):
    """Yields every flag of a configuration, parts included."""
    for field in dataclasses.fields(kind):
        default = field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
        name = prefix + field.name.replace("_", "-")
        if dataclasses.is_dataclass(default):
            yield from flags(type(default), f"{name}.")
        else:
            yield name


def test_configuration_lists_every_flag_once():
    page = HOOK.on_page_markdown("before\n<!-- generated: configuration -->\nafter")
    assert page.startswith("before\n## run\n")
    assert page.endswith("\nafter")
    missing = [flag for flag in flags(RunConfig, "--run.") if page.count(f"| `{flag}` |") != 1]
    assert missing == []


def test_every_field_of_the_reference_is_described():
    rows = [line for line in HOOK.configuration().splitlines() if line.startswith("| `--")]
    assert [row for row in rows if row.split("|")[-2].strip().startswith("`")] == []


def test_commands_page_has_a_table_for_each_command():
    page = HOOK.commands()
    kinds = {kind.__name__ for name, kind in COMMANDS.items() if name != "bench"}
    assert {line.removeprefix("### ") for line in page.splitlines() if line.startswith("### ")} == kinds
