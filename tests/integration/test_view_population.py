"""The page of a population in a real browser without a window."""

import pytest

from tests.integration.headless_chromium import chromium, find_chromium
from tests.integration.test_view import viewing
from tests.integration.view_runs import make_population

pytest.importorskip("websockets", reason="drives Chromium: pip install websockets")
PROGRAM = find_chromium()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="no chromium on this machine: apt-get install chromium"),
]


def test_populations_are_drawn(tmp_path):
    for kind in ("pbt", "psro", "league"):
        make_population(tmp_path / kind, kind)
    marks = {
        "pbt": {"circle.member": 8, "line.descent": 6, "rect.payoff": 0},
        "psro": {"circle.member": 2, "line.descent": 0, "rect.payoff": 4},
        "league": {"circle.member": 6, "line.descent": 4, "rect.payoff": 9},
    }
    with viewing(tmp_path) as (_, address), chromium(PROGRAM) as browser:
        page = browser.open_page(width=390, mobile=True)
        page.open(f"{address}#/population")
        page.wait_for("document.querySelectorAll('main li a').length === 3")
        page.js("document.querySelector('main li a').click()")
        page.wait_for("document.querySelector('svg.population')")
        assert page.js("document.documentElement.scrollWidth") <= 390
        for kind, counts in marks.items():
            page = browser.open_page()
            page.open(f"{address}#/population/{kind}")
            page.wait_for("document.querySelector('svg.population')")
            for mark, count in counts.items():
                assert page.js(f"document.querySelectorAll('svg.population {mark}').length") == count, (kind, mark)
            assert page.js("[...document.querySelectorAll('#navigation a')].map((a) => a.innerText)")[2:] == [
                "Populations"
            ]
            href = page.js("document.querySelector('svg.population a').getAttribute('href')")
            assert href.startswith(f"#/run/{kind}%2F")
            assert page.js("document.documentElement.scrollWidth") <= 1280
            assert page.problems == []
            page.call("Page.close")
