"""Hook of mkdocs that fills `<!-- generated: ... -->` marks of reference pages from the dataclasses of the code.

The tables are made when the site is built, so they cannot be out of date. Nothing is imported: source files are parsed.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
MARK = re.compile(r"<!-- generated: (\w+) -->")
_ATTRIBUTE = re.compile(r"^    (\w+): (.*)$")


class Field(NamedTuple):
    """One field of a dataclass: its annotation, default and description as written in the source."""

    name: str
    type: str
    default: str
    description: str
    is_positional: bool = False


class Options(NamedTuple):
    """One dataclass of options: its first docstring line and its fields."""

    summary: str
    fields: tuple[Field, ...]


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replaces every mark of a page by its tables; mkdocs calls it."""
    return MARK.sub(lambda mark: {"configuration": configuration, "commands": commands}[mark[1]](), markdown)


def configuration() -> str:
    """Returns one table for RunConfig and one for each of its parts."""
    files = [*sorted((ROOT / "jaxsrl" / "config").glob("*.py")), ROOT / "envpool_bridge" / "options.py"]
    files.append(ROOT / "agents" / "transforms" / "level_replay_config.py")
    return "\n\n".join(part_tables("run", "RunConfig", read_options(files)))


def part_tables(name: str, kind: str, classes: dict[str, Options]) -> Iterator[str]:
    """Yields the table of a dataclass, and those of the dataclasses among its fields.

    Args:
        name: prefix of its flags. A part of `run` has its own name as prefix, as on the command line.
        kind: name of the dataclass.
        classes: all dataclasses by name.
    """
    parts = {field.name: field.type for field in classes[kind].fields if field.type in classes}
    plain = tuple(field for field in classes[kind].fields if field.name not in parts)
    yield f"## {name}\n\n{options_table(f'--{name}.', classes[kind]._replace(fields=plain))}"
    for field_name, part_kind in parts.items():
        part = field_name.replace("_", "-")
        yield from part_tables(part if name == "run" else f"{name}.{part}", part_kind, classes)


def commands() -> str:
    """Returns one table for each subcommand of `jaxsrl`."""
    classes = read_options(sorted((ROOT / "jaxsrl" / "cli" / "commands").glob("*.py")))
    return "\n\n".join(f"### {name}\n\n{options_table('--', options)}" for name, options in classes.items())


def read_options(files: list[Path]) -> dict[str, Options]:
    """Returns all dataclasses of some files that document their attributes, by class name."""
    nodes = [node for file in files for node in ast.parse(file.read_text()).body if isinstance(node, ast.ClassDef)]
    documented = {node.name: (node, ast.get_docstring(node, clean=True) or "") for node in nodes}
    return {name: options_of(node, text) for name, (node, text) in documented.items() if "Attributes:" in text}


def options_of(node: ast.ClassDef, docstring: str) -> Options:
    """Returns the fields of a dataclass with their descriptions."""
    descriptions = read_attributes(docstring)
    fields = [
        make_field(item.target.id, item, descriptions)
        for item in node.body
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    ]
    return Options(docstring.partition("\n")[0], tuple(fields))


def make_field(name: str, item: ast.AnnAssign, descriptions: dict[str, str]) -> Field:
    """Returns one field of a dataclass."""
    kind = plain_type(item.annotation)
    inner = re.fullmatch(r"tyro\.conf\.Positional\[(.*)\]", kind)
    return Field(name, inner[1] if inner else kind, default_of(item.value), descriptions.get(name, ""), bool(inner))


def read_attributes(docstring: str) -> dict[str, str]:
    """Returns the descriptions in the section `Attributes:` of a docstring, by name, each on one line."""
    descriptions: dict[str, str] = {}
    name = ""
    for line in docstring.partition("Attributes:\n")[2].splitlines():
        if match := _ATTRIBUTE.match(line):
            name, descriptions[match[1]] = match[1], match[2]
        elif name and line.startswith("        "):
            descriptions[name] += " " + line.strip()
    return descriptions


def plain_type(annotation: ast.expr) -> str:
    """Returns an annotation without what tyro reads of it: `Annotated[str, ...]` is `str`."""
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Annotated":
        assert isinstance(annotation.slice, ast.Tuple)
        return ast.unparse(annotation.slice.elts[0])
    return ast.unparse(annotation)


def default_of(value: ast.expr | None) -> str:
    """Returns the default of a field as written; empty where there is none or a factory makes it."""
    text = "" if value is None else ast.unparse(value)
    return "" if "field(" in text or "MISSING" in text else text


def options_table(prefix: str, options: Options) -> str:
    """Returns a Markdown table of flags."""
    rows = [
        f"| {code(flag(prefix, field))} | {code(field.default)} | {escape(field.description)} {code(field.type)} |"
        for field in options.fields
    ]
    table = ["| flag | default | meaning and type |", "|---|---|---|", *rows]
    return "\n".join([escape(options.summary), "", '<div class="options" markdown>', "", *table, "", "</div>"])


def flag(prefix: str, field: Field) -> str:
    """Returns how a field is written on the command line; a positional argument in capitals."""
    return field.name.upper() if field.is_positional else prefix + field.name.replace("_", "-")


def escape(text: str) -> str:
    """Returns text in which no character ends a table cell."""
    return text.replace("|", "\\|")


def code(text: str) -> str:
    """Returns text as inline code, or nothing for nothing."""
    return f"`{escape(text)}`" if text else ""
