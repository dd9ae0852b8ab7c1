"""The page of a run of plan `offline` in a real browser: its budget, and evaluations, which alone have returns."""

import dataclasses
import json
from contextlib import contextmanager

import pytest

from jaxsrl.metrics.evaluations import Evaluation, append_evaluation
from tests.integration.headless_chromium import chromium, find_chromium
from tests.integration.test_view import viewing
from tests.integration.view_runs import make_run
from tests.unit.jaxsrl.web.test_run_files import make_checkpoint

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
    with viewed(make_offline_run(tmp_path_factory.mktemp("runs")).parent) as opened:
        opened.go("#/run/iql")
        opened.wait_for("document.querySelector('.chart .series')")
        yield opened


def make_offline_run(root):
    run = make_run(root / "iql")
    config = json.loads((run / "config.json").read_text())
    config["experiment"]["run"] |= {"plan": "offline", "gradient_steps": 20_000, "total_env_steps": 500_000}
    (run / "config.json").write_text(json.dumps(config))
    names = ("update", "wall_seconds", "loss/total", "speed/env_steps_per_second", "utilization/learner/busy")
    with open(run / "metrics.jsonl") as file:
        records = [{name: value for name, value in json.loads(line).items() if name in names} for line in file]
    lines = [json.dumps({**each, "env_steps": each["update"] * 1000}) + "\n" for each in records]
    (run / "metrics.jsonl").write_text("".join(lines))
    for update, std in ((5, 1.0), (10, 0.5), (20, 0.25)):
        place = {"update": update, "env_steps": update * 1000, "frames": update * 1000}
        append_evaluation(run, dataclasses.replace(EVALUATION, **place, std_return=std))
    make_checkpoint(run, 20)
    return run


@contextmanager
def viewed(root):
    """A tab with the function `go`, which opens a page of the site."""
    with viewing(root) as (_, address), chromium(PROGRAM) as browser:
        opened = browser.open_page()
        opened.go = lambda place: opened.open(f"{address}{place}")
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


def test_axes_count_gradient_steps(page):
    page.go("#/run/iql")
    page.wait_for("document.querySelectorAll('.chart .series').length === 4")
    assert axes_of(page) == ["Gradient steps", "Time"]
    speed = "document.querySelector(\"[data-metric='speed/env_steps_per_second'] .metric\").innerText"
    assert page.js(speed) == "gradient steps a second"
    labels = page.js(
        "[...document.querySelectorAll('.chart[aria-label]')].map((one) => one.getAttribute('aria-label'))"
    )
    assert all(" up to 20,000 gradient steps: " in label for label in labels)
    assert "env steps" not in page.js("document.querySelector('main').innerText").lower()


def axes_of(page):
    return page.js(
        "[...document.querySelectorAll('[aria-label=\"Horizontal axis\"] button')]"
        ".filter((one) => one.checkVisibility()).map((one) => one.innerText)"
    )


def heads_of(page):
    return page.js("[...document.querySelectorAll('thead th')].map((one) => one.innerText)")


def test_an_axis_that_an_offline_run_lacks_is_that_of_its_steps(page):
    page.go("#/run/iql?x=frames")
    page.wait_for("location.hash.includes('frames') && document.querySelector('.chart .series')")
    pressed = "document.querySelector('[aria-label=\"Horizontal axis\"] [aria-pressed=true]').innerText"
    page.wait_for(f"{pressed} === 'Gradient steps'")


def test_other_tabs_count_gradient_steps(page):
    page.go("#/run/iql/checkpoints")
    page.wait_for("document.querySelector('[data-tab=checkpoints] thead')")
    assert heads_of(page)[:3] == ["Update", "Gradient steps", "Size"]
    page.go("#/run/iql/dataflow")
    page.wait_for("document.querySelector('.axis-row')")
    assert "20k gradient steps" in page.js("document.querySelector('.axis-row').innerText")


def test_lists_name_the_steps_that_their_runs_have(page, tmp_path):
    page.go("#/")
    page.wait_for("document.querySelector('tbody tr')")
    assert "Gradient steps" in heads_of(page)
    make_offline_run(tmp_path)
    make_run(tmp_path / "ppo")
    with viewed(tmp_path) as mixed:
        mixed.go("#/")
        mixed.wait_for("document.querySelectorAll('.chart .series').length === 2")
        assert "Steps" in heads_of(mixed)
        assert axes_of(mixed) == ["Steps", "Time", "Frames"]
        mixed.js("document.querySelector('tr[data-run=iql] input').click()")
        mixed.wait_for("document.querySelectorAll('.chart .series').length === 1")
        assert axes_of(mixed) == ["Env steps", "Time", "Frames"]
        assert "Steps" in heads_of(mixed)
