"""The page of a run of plan `offline` in a real browser: its budget, and evaluations, which alone have returns."""

import dataclasses
import json

import pytest

from jaxsrl.metrics.evaluations import Evaluation, append_evaluation
from tests.integration.headless_chromium import chromium, find_chromium
from tests.integration.test_view import viewing
from tests.integration.view_runs import make_run

pytest.importorskip("websockets", reason="drives Chromium: pip install websockets")
PROGRAM = find_chromium()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="no chromium on this machine: apt-get install chromium"),
]
EVALUATION = Evaluation(10, 10_000, 10_000, "greedy", 8.0, 0.5, 7.0, 9.0, 9.0, 2, 0, 0.1)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page of a run of 20 updates of 1,000 gradient steps, evaluated three times with the same mean."""
    root = tmp_path_factory.mktemp("runs")
    run = make_run(root / "iql")
    config = json.loads((run / "config.json").read_text())
    config["experiment"]["run"] |= {"plan": "offline", "gradient_steps": 20_000, "total_env_steps": 500_000}
    (run / "config.json").write_text(json.dumps(config))
    names = ("update", "wall_seconds", "loss/total", "speed/env_steps_per_second")
    with open(run / "metrics.jsonl") as file:
        records = [{name: value for name, value in json.loads(line).items() if name in names} for line in file]
    lines = [json.dumps({**each, "env_steps": each["update"] * 1000}) + "\n" for each in records]
    (run / "metrics.jsonl").write_text("".join(lines))
    for update, std in ((5, 1.0), (10, 0.5), (20, 0.25)):
        place = {"update": update, "env_steps": update * 1000, "frames": update * 1000}
        append_evaluation(run, dataclasses.replace(EVALUATION, **place, std_return=std))
    with viewing(root) as (_, address), chromium(PROGRAM) as browser:
        opened = browser.open_page()
        opened.open(f"{address}#/run/iql")
        opened.wait_for("document.querySelector('.chart .series')")
        yield opened
        assert opened.problems == []


def test_tiles_count_gradient_steps(page):
    tiles = page.js("document.querySelector('.tiles').innerText")
    assert "of 20k gradient steps" in tiles
    assert "gradient steps a second" in tiles
    assert "env steps" not in tiles


def test_evaluations_without_episodes_have_charts(page):
    charts = page.js("[...document.querySelectorAll('.chart-card')].map((one) => one.dataset.metric)")
    assert charts == ["eval/return_mean", "eval/return_std", "loss/total", "speed/env_steps_per_second"]
    chart = "[data-metric='eval/return_mean']"
    assert page.js(f"document.querySelector(\"{chart} .series\").getAttribute('d').split('L').length") == 3
    assert page.js(f'document.querySelector("{chart} .now").innerText') == "8"
    assert "eval/return_max" in page.js("document.querySelector('details.card').textContent")
