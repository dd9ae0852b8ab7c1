"""A dataset as one HTML page: what it contains, histograms of its episodes, and a list of them."""

import html
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxsrl.datasets.dataset import Dataset, Episodes, describe, find_episodes

_NUM_BINS, _WIDTH, _HEIGHT, _BASE = 40, 640, 160, 20
_MOST_LISTED = 1000
_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 720px; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; }
td, th { padding: 0.1rem 1.2rem 0.1rem 0; text-align: right; font-variant-numeric: tabular-nums; }
td:first-child, th:first-child { text-align: left; }
svg { width: 100%; height: auto; }
rect { fill: #56B4E9; }
text { fill: currentColor; font-size: 12px; }
"""


def dataset_page(dataset: Dataset) -> str:
    """Returns the page as HTML, which needs no other file."""
    episodes, name = find_episodes(dataset.steps), html.escape(str(dataset.path))
    parts = [
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{name}</title>',
        f'<meta name="viewport" content="width=device-width">\n<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{name}</h1>',
        _description(describe(dataset)),
    ]
    if len(episodes.returns):
        parts += ["<h2>Returns</h2>", histogram(episodes.returns), "<h2>Lengths</h2>", histogram(episodes.lengths)]
        parts += ["<h2>Episodes</h2>", _list(episodes)]
    return "\n".join([*parts, "</body>\n</html>\n"])


def histogram(values: np.ndarray) -> str:
    """Returns an SVG picture of the numbers of values in bins of one width; `values` is [E], and not empty."""
    counts, edges = np.histogram(values, min(_NUM_BINS, max(1, len(np.unique(values)))))
    width, bars = _WIDTH / len(counts), list[str]()
    for number, count in enumerate(counts):
        height = (_HEIGHT - _BASE) * count / counts.max()
        place = (
            f'x="{number * width:.1f}" y="{_HEIGHT - _BASE - height:.1f}" width="{width - 1:.1f}" height="{height:.1f}"'
        )
        bars.append(f"<rect {place}><title>{count} of {edges[number]:,.4g} to {edges[number + 1]:,.4g}</title></rect>")
    labels = (
        f'<text x="0" y="{_HEIGHT - 4}">{edges[0]:,.4g}</text>'
        f'<text x="{_WIDTH}" y="{_HEIGHT - 4}" text-anchor="end">{edges[-1]:,.4g}</text>'
        f'<text x="{_WIDTH}" y="12" text-anchor="end">at most {counts.max():,}</text>'
    )
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">{"".join(bars)}{labels}</svg>'


def _description(values: Mapping[str, Any]) -> str:
    rows = [(name.replace("_", " "), _text(value)) for name, value in values.items() if value is not None]
    return f"<table>{''.join(f'<tr><td>{name}</td><td>{html.escape(text)}</td></tr>' for name, text in rows)}</table>"


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {entry}" for key, entry in value.items())
    return f"{value:,.2f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def _list(episodes: Episodes) -> str:
    columns = (episodes.row, episodes.begin, episodes.lengths, episodes.returns, episodes.truncated)
    lines = [
        f"<tr><td>{number}</td><td>{row}</td><td>{begin:,}</td><td>{length:,}</td><td>{total:,.2f}</td>"
        f"<td>{'truncated' if truncated else 'terminated'}</td></tr>"
        for number, (row, begin, length, total, truncated) in enumerate(zip(*columns, strict=True))
        if number < _MOST_LISTED
    ]
    names = ("episode", "row", "first step", "length", "return", "end")
    head = "".join(f"<th>{name}</th>" for name in names)
    more = (
        f"<p>The first {_MOST_LISTED:,} of {len(episodes.returns):,}.</p>"
        if len(episodes.returns) > _MOST_LISTED
        else ""
    )
    return f"{more}<table><tr>{head}</tr>{''.join(lines)}</table>"
