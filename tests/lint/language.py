"""Plain-language rules for docstrings, comments, messages, identifiers, documentation and test names.

    python tests/lint/language.py [PATH ...]

It checks all tracked files, or those in the given paths.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

PRODUCT = ("jaxsrl", "agents", "envpool_bridge", "experiments")
MAX_WORDS = 30  # of a sentence
MAX_TEST_NAME = 60

FIRST_WORDS = re.compile(
    r"what|of|as|how|where|which|who|that|nothing|none|those|whether|this|its|it|always|whose|whoever|nobody|somebody",
    re.IGNORECASE,
)
RETIRED_VERBS = re.compile(r"Begins|Has|Goes|Hears|Says|Tells")
PLURAL_NOUNS = re.compile(
    r"A(ctions|dvantages|rrays)|B(undles|ytes)|C(ells|haracters|heckpoints|ores|ritics)|D(evices|irectories)|Episodes|F(eatures|ields|iles"
    r"|ragments|rames)|G(aussians|radients)|Infos|Keys|L(anes|ogits)|M(edians|oments)|N(etworks|umbers)|O(bservations|ptions)|P(arameters"
    r"|hysics|riorities|robabilities|rograms)|R(esults|ows)|S(econds|ervers|ettings|izes|lots|paces|tatistics)|T(argets|exts|otals"
    r"|rajectories|rees)|W(alls|indows|orkers)"
)
PHRASES = re.compile(
    r"\b(whoever|nobody|somebody|everybody|anew|beside|begun|learnt|tell(s|ing|ings)?|told|(go|goes|going|went|gone) on"
    r"|(leave|leaves|leaving|left) out|so many|in words|to the bit|(?<!connection )refus(e|es|ed|ing|al|als))\b",
    re.IGNORECASE,
)
RETIRED = re.compile(r"begun|told|tellings?|refus(e|es|ed|al|als)|learnt|anew|beside|nobody|somebody|whoever")
BRITISH = re.compile(
    r"\w*(colour|favour|neighbour|honour|armour|labour)\w*|centre[sd]?"
    r"|\w*(al|ar|im|on|er|or|ir|gn|in|dom|tor|ret|ant|it|il|el)is(e|es|ed|er|ers|ing|ation|ations)"
)
VERB = re.compile(r"[A-Z][a-z-]*[^s\W]s")


ENTRY = re.compile(r" *(\*{0,2}\w[\w, .*]*?)( \(.*?\))?: ([\w-]+)")
FRAGMENTS = re.compile(
    r"of|its?|as|to|that|for|with|from|in|whose|which|at|by|before|likewise|without|who|between|on|after|per",
    re.IGNORECASE,
)


class Violation(tuple[Path, int, str]):
    """File, line and rule of one violation."""

    def __str__(self) -> str:
        return f"{self[0]}:{self[1]}: {self[2]}"


def sentences(text: str) -> Iterator[tuple[int, int]]:
    """Yields line offset and number of words of every sentence; blocks end at empty lines, list items and argument names."""
    start, words = 0, 0
    for offset, line in enumerate([*text.splitlines(), ""]):
        line = re.sub(r"`[^`]*`|\]\([^)]*\)|https?://\S+", " code ", line)
        is_block = not line.strip() or re.match(r"\s*([-*+|#>]|\d+\.|\*{0,2}\w+( \(.*?\))?:( |$))", line)
        if is_block and words:
            yield start, words
            words = 0
        for word in re.findall(r"\S+", line):
            start = offset if words == 0 else start
            words += bool(re.search(r"[A-Za-z]", word))
            if re.search(r"[.!?:][)\"'*]*$", word) and not re.search(r"\b(e\.g|i\.e|al|vs|Eq|Fig)\.$", word) and words:
                yield start, words
                words = 0


def is_verb(word: str) -> bool:
    """Returns whether a first word looks like a verb in the third person."""
    return bool(VERB.fullmatch(word)) and not RETIRED_VERBS.fullmatch(word) and not PLURAL_NOUNS.fullmatch(word)


def docstring_rules(node: ast.AST, text: str) -> Iterator[str]:
    """Yields the rules that the first word of a docstring breaks."""
    first = re.split(r"[\s,.:;(]", text.strip(), maxsplit=1)[0].strip("`'\"")
    is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    if is_function and node.name == "__init__":
        yield "docstring on __init__: describe the arguments in the class docstring"
    elif FIRST_WORDS.fullmatch(first):
        yield f"docstring starts with {first!r}"
    elif (
        is_function and not any("property" in ast.unparse(each) for each in node.decorator_list) and not is_verb(first)
    ):
        yield f"function docstring starts with {first!r}, not with a third-person verb"


def fragments(text: str, first_line: int) -> Iterator[tuple[int, str]]:
    """Yields line and rule of every entry of Args, Attributes or Raises that only continues its name."""
    indent = None
    for offset, line in enumerate(text.splitlines()):
        depth = len(line) - len(line.lstrip())
        if re.fullmatch(r" *(Args|Attributes|Raises):", line):
            indent = depth
        elif indent is not None and line.strip() and depth <= indent:
            indent = None
        elif (
            indent is not None
            and depth == indent + 4
            and (entry := ENTRY.match(line))
            and FRAGMENTS.fullmatch(entry[3])
        ):
            yield (
                first_line + offset,
                f"entry {entry[1]!r} does not stand alone: 'plan: Plan of the run.', not 'plan: of the run.'",
            )


def identifier_rules(name: str) -> Iterator[str]:
    """Yields the rules that a defined name breaks."""
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)
    if name == "found" or name.endswith("_in_words") or name.startswith("require_"):
        yield f"name {name!r}: name the content (not found), format_ (not _in_words), validate_ (not require_)"
    for word in map(str.lower, words):
        if RETIRED.fullmatch(word):
            yield f"name {name!r} has {word!r}"
        elif BRITISH.fullmatch(word):
            yield f"name {name!r}: American spelling"


def defined_names(node: ast.AST) -> Iterator[str]:
    """Yields the names that a node defines."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
        yield node.id if isinstance(node, ast.Name) else node.attr
    elif isinstance(node, ast.arg):
        yield node.arg


def product_violations(text: str) -> Iterator[tuple[int, str]]:
    """Yields line and rule of every violation in product code."""
    docstrings: set[ast.AST] = set()
    for node in ast.walk(ast.parse(text)):
        for name in defined_names(node):
            yield from ((node.lineno, rule) for rule in identifier_rules(name))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(
            node
        ):
            constant = node.body[0].value  # pyright: ignore[reportAttributeAccessIssue]
            docstrings.add(constant)
            yield from ((constant.lineno, rule) for rule in docstring_rules(node, constant.value))
            yield from long_sentences(constant.value, constant.lineno)
            yield from fragments(constant.value, constant.lineno)
            yield from banned(constant.value, constant.lineno)
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and " " in node.value
            and node not in docstrings
        ):
            yield from banned(node.value, node.lineno)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield from banned(token.string, token.start[0])


def banned(text: str, first_line: int) -> Iterator[tuple[int, str]]:
    """Yields line and rule of every banned word in a text."""
    for offset, line in enumerate(text.splitlines()):
        yield from ((first_line + offset, f"banned: {match[0]!r}") for match in PHRASES.finditer(line))


def long_sentences(text: str, first_line: int = 1) -> Iterator[tuple[int, str]]:
    """Yields line and rule of every sentence over the limit."""
    for offset, words in sentences(text):
        if words > MAX_WORDS:
            yield first_line + offset, f"sentence of {words} words, at most {MAX_WORDS}"


def long_test_names(text: str) -> Iterator[tuple[int, str]]:
    """Yields line and rule of every test name over the limit."""
    for node in ast.walk(ast.parse(text)):
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if is_function and node.name.startswith("test_") and len(node.name) > MAX_TEST_NAME:
            yield node.lineno, f"test name of {len(node.name)} characters, at most {MAX_TEST_NAME}"


def violations(path: Path) -> list[Violation]:
    """Returns the violations of one file, in the order of its lines."""
    text = path.read_text()
    if path.suffix == ".md":
        prose = re.sub(
            r"^```.*?^```|^\|.*?$", lambda block: "\n" * block[0].count("\n"), text, flags=re.DOTALL | re.MULTILINE
        )
        listed = chain(long_sentences(prose), banned(prose, 1))
    elif path.parts[0] in PRODUCT:
        listed = chain(product_violations(text), ((1, rule) for rule in identifier_rules(path.stem)))
    else:
        listed = long_test_names(text)
    return [Violation((path, line, rule)) for line, rule in sorted(listed)]


def main() -> int:
    """Prints the violations in the given paths, or in all tracked files; returns the exit status."""
    patterns = sys.argv[1:] or [*PRODUCT, "tests", "docs", "README.md"]
    tracked = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", *patterns], capture_output=True, text=True, check=True
    ).stdout
    files = sorted({Path(name) for name in tracked.split() if name.endswith((".py", ".md")) and Path(name).is_file()})
    listed = [violation for path in files for violation in violations(path)]
    print("\n".join(map(str, listed)) or "language: no violations")
    return 1 if listed else 0


if __name__ == "__main__":
    sys.exit(main())
