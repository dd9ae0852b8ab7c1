"""Every relative link and anchor of README.md and docs/ leads somewhere, and every path that they name is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted(
    (ROOT / "docs").rglob("*.md")
)
PAGES += sorted((ROOT / "notebooks").glob("*.ipynb"))

_LINK = re.compile(r"\[(?:[^\]\[]|\[[^\]]*\])*\]\(([^)\s]+)\)")
_CODE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`([^`\n]+)`")
# Paths of the repository as prose names them: `agents/ppo.py`, `tests/chaos`, `notebooks/01_train_ppo.ipynb`.
_NAMED = re.compile(
    r"^(?:agents|docs|envpool_bridge|experiments|jaxsrl|notebooks|tests)/[\w./-]*[\w]/?(?=$|::)|^[A-Z]+\.md$|^pyproject\.toml$"
)


def anchors_of(page):
    """As GitHub and mkdocs make them: lower case, without punctuation, spaces as hyphens."""
    found, text = set(), _CODE.sub("", page.read_text())
    for heading in re.findall(r"^#+\s+(.*?)\s*$", text, re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        anchor = re.sub(r"[^\w\s-]", "", words.lower()).strip()
        found.add(re.sub(r"\s", "-", anchor))
        found.add(re.sub(r"[\s-]+", "-", anchor))
    return found


def broken_links(page):
    broken, text = [], _CODE.sub("", page.read_text())
    for link in _LINK.findall(text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            broken.append(f"{link}: there is no {path}")
        elif anchor and anchor not in anchors_of(target):
            broken.append(f"{link}: there is no such heading in {target.name}")
    return broken


def missing_paths(page):
    # Reference pages and code blocks are made by other tools; generated and illustrative paths are no files of the repository.
    named = {match[0] for code in _INLINE.findall(_CODE.sub("", page.read_text())) if (match := _NAMED.match(code))}
    return sorted(name for name in named if not (ROOT / name).exists())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_paths_of_a_page_lead_somewhere(page):
    assert broken_links(page) == []
    assert missing_paths(page) == []


def test_site_lists_existing_pages_and_links_the_rest():
    listed = set(re.findall(r"([\w/]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    pages = sorted((ROOT / "docs").rglob("*.md"))
    there = {str(page.relative_to(ROOT / "docs")) for page in pages}
    linked = {
        (page.parent / link.partition("#")[0]).resolve() for page in pages for link in _LINK.findall(page.read_text())
    }
    assert listed - there == set()
    assert [name for name in sorted(there - listed) if ROOT / "docs" / name not in linked] == []


def test_broken_links_anchors_and_files_are_reported(tmp_path):
    (tmp_path / "there.md").write_text("# One heading, with `code`\n")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](there.md) [b](there.md#one-heading-with-code) [c](gone.md) [d](there.md#two) [e](https://x.org/gone.md)\n"
        "`agents/ppo.py` `agents/gone.py` `tests/gone/test_x.py::test_y`\n```\n[f](gone_too.md)\n```\n"
    )
    assert broken_links(page) == ["gone.md: there is no gone.md", "there.md#two: there is no such heading in there.md"]
    assert missing_paths(page) == ["agents/gone.py", "tests/gone/test_x.py"]


@pytest.mark.parametrize("page", [page for page in PAGES if page.suffix == ".md"], ids=lambda page: page.stem)
def test_tables_are_whole(page):
    # A blank line, or a row of another width, and readers see bars instead of a table.
    lines = _CODE.sub("", page.read_text()).split("\n")
    wrong, width = [], 0
    for before, line, after in zip(["", *lines], lines, [*lines[1:], ""], strict=False):
        if not line.startswith("|"):
            width = 0
            continue
        cells = _INLINE.sub("code", line).replace(r"\|", "").count("|")
        if not width and (before.strip() or not re.fullmatch(r"\|[\s:|-]+\|", after)):
            wrong.append(line)
        wrong += [line] if width and cells != width else []
        width = width or cells
    assert wrong == []
