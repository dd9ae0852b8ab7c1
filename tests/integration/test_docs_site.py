"""The documentation builds without a warning, and a page of it loads nothing from elsewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("material")
pytest.importorskip("mkdocstrings_handlers.python")

ROOT = Path(__file__).parents[2]
_LOADED = re.compile(
    r"<(?:script|img|iframe|source)[^>]*\ssrc=[\"']?(https?:[^\"'\s>]+)|<link[^>]*\shref=[\"']?(https?:[^\"'\s>]+)"
)


@pytest.mark.slow
def test_site_builds_strictly_without_external_resources(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=150)
    assert built.returncode == 0, built.stderr
    pages = {page: page.read_text() for page in (tmp_path / "site").rglob("*.html")}
    assert {str(page.name): _LOADED.findall(text) for page, text in pages.items() if _LOADED.findall(text)} == {}
    reference = pages[tmp_path / "site" / "reference" / "api_mathematics.html"]
    assert "Returns generalized advantage estimates" in reference
    assert "&gt;&gt;&gt; " in reference  # examples, as code
