"""The web page in a real browser without a window: what people see, read, press, and see change while a run trains."""

import contextlib
import dataclasses
import re
import subprocess
from pathlib import Path

import pytest

from envpool_bridge.shm.layout import make_layout
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec
from jaxsrl.checkpoints.run_directory import RunDirectory
from jaxsrl.machine.resources import Resources
from jaxsrl.metrics.evaluations import EVALUATIONS, Evaluation, append_evaluation
from jaxsrl.plan.cost.channel_bytes import bytes_of_plan
from jaxsrl.plan.drawing.svg import draw_plan, plan_as_svg
from jaxsrl.plan.policies import PLANS
from tests.integration.headless_chromium import chromium, find_chromium
from tests.integration.test_view import viewing
from tests.integration.view_runs import make_run, record
from tests.support.run_configs import run_config
from tests.unit.jaxsrl.plan.drawing.test_group_layout import plan_of

pytest.importorskip("websockets", reason="drives Chromium: pip install websockets")
PROGRAM = find_chromium()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="no chromium on this machine: apt-get install chromium"),
]
STATIC = Path("jaxsrl/web/static")
PIXELS = EnvSpec("pixels", ArraySpec((4, 84, 84), "uint8"), DiscreteSpec(4))
HOSTILE = '<img src=x onerror="document.title=1">'
PAGES = (
    "/",
    "/compare",
    *(f"/run/first{tab}" for tab in ("", "/dataflow", "/episodes", "/configuration", "/checkpoints", "/log")),
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs")
    make_run(directory / "first")
    make_run(directory / "second", seed=1, updates=10, log="stopped by SIGINT")
    make_run(directory / HOSTILE.replace("/", ""), updates=3)
    return directory


@pytest.fixture(scope="module")
def browser():
    with chromium(PROGRAM) as found:
        yield found


@pytest.fixture(scope="module")
def url(runs):
    with viewing(runs) as (_, address):
        yield address


@pytest.fixture
def opened(browser, url):
    """Opens a page of the site in a tab of its own, and checks at the end that the browser had nothing to complain about."""
    pages = []

    def go(hash_path, **window):
        page = browser.open_page(**window)
        pages.append(page)
        page.open(f"{url}#{hash_path}")
        page.wait_for("document.querySelector('main h1')")
        return page

    yield go
    for page in pages:
        page.js("1")  # takes in what was said
        assert page.problems == []
        page.call("Page.close")


def text(page, selector):
    return page.js(f"document.querySelector({selector!r})?.innerText ?? ''")


def test_runs_are_drawn_and_listed(opened):
    page = opened("/")
    page.wait_for("document.querySelectorAll('.chart .series').length === 3")
    row = page.js("document.querySelector('tr[data-run=first]').innerText")
    assert re.search(r"first\s+finished\s+100 %\s+20\s+20\b", row)
    assert "stopped" in page.js("document.querySelector('tr[data-run=second]').innerText")
    path = page.js("document.querySelector('.series[data-run=first]').getAttribute('d')")
    assert path.count("L") == 19  # 20 records


def test_run_name_is_escaped_text(opened):
    page = opened("/")
    page.wait_for("document.querySelectorAll('tbody tr').length === 3")
    assert HOSTILE.replace("/", "") in text(page, "tbody")
    assert page.js("document.querySelectorAll('main img').length") == 0


def test_hidden_run_leaves_the_chart_and_stays_hidden(opened):
    page = opened("/")
    page.wait_for("document.querySelectorAll('.chart .series').length === 3")
    page.js("document.querySelector('tr[data-run=second] input').click()")
    page.wait_for("document.querySelectorAll('.chart .series').length === 2")
    page.call("Page.reload")
    page.wait_for("document.querySelectorAll('.chart .series').length === 2")


def test_the_curve_grows_while_the_run_trains(opened, runs):
    live = make_run(runs / "live", updates=5, log="begins")
    with RunDirectory(live):
        page = opened("/run/live")
        page.wait_for("document.querySelector('.chart .series')?.getAttribute('d').split('L').length === 5")
        assert text(page, ".title .state") == "running"
        assert text(page, "#connection") == "live"
        with open(live / "metrics.jsonl", "a") as file:
            file.write(record(6, 3.0) + record(7, 3.5)[:20])
        page.wait_for("document.querySelector('.chart .series').getAttribute('d').split('L').length === 6")
        with open(live / "metrics.jsonl", "a") as file:
            file.write(record(7, 3.5)[20:])
        page.wait_for("document.querySelector('.chart .series').getAttribute('d').split('L').length === 7")
        assert "7" in text(page, ".chart-card .now")
    page.wait_for("document.querySelector('.title .state').innerText === 'crashed'")


def test_the_mouse_reads_values(opened):
    page = opened("/run/first")
    page.wait_for("document.querySelector('.chart .series')")
    box = page.js(
        "(({left, top, width, height}) => [left, top, width, height])(document.querySelector('.chart').getBoundingClientRect())"
    )
    page.move(box[0] + box[2] - 20, box[1] + box[3] / 2)
    page.wait_for("!document.querySelector('.tooltip').hidden")
    assert re.search(r"2,560 env steps\s+first\s+20", text(page, ".tooltip"))
    corners = "(({left, right, top, bottom}) => [left, right, top, bottom])"
    left, right, top, bottom = page.js(f"{corners}(document.querySelector('.tooltip').getBoundingClientRect())")
    assert (
        box[0] + box[2] - 60 - (right - left) < left < right < box[0] + box[2]
    )  # left of the crosshair: there is no room right
    assert box[1] <= top < bottom <= box[1] + box[3]
    page.move(5, 5)
    page.wait_for("document.querySelector('.tooltip').hidden")


def test_dragging_zooms_all_charts_and_a_button_shows_all_again(opened):
    page = opened("/run/first")
    page.wait_for("document.querySelector('.chart .series')")
    left, top, width = page.js(
        "(({left, top, width}) => [left, top, width])(document.querySelector('.chart').getBoundingClientRect())"
    )
    whole = page.js("document.querySelector('.series').getAttribute('d')")
    page.move(left + width * 0.4, top + 60, "mousePressed")
    page.move(left + width * 0.6, top + 60)
    page.move(left + width * 0.6, top + 60, "mouseReleased")
    page.wait_for("location.hash.includes('from=')")
    assert page.js("document.querySelector('.series').getAttribute('d')") != whole
    page.js("[...document.querySelectorAll('.controls button')].find((one) => one.textContent === 'Show all').click()")
    page.wait_for("!location.hash.includes('from=')")
    assert page.js("document.querySelector('.series').getAttribute('d')") == whole


def test_the_keyboard_does_all_that_the_mouse_does(opened):
    page = opened("/run/first")
    page.wait_for("document.querySelector('.chart .series')")
    seen = []
    for _ in range(14):
        page.press("Tab")
        seen.append(
            page.js("document.activeElement.getAttribute('aria-label') || document.activeElement.textContent.trim()")
        )
        if page.js("document.activeElement.classList.contains('chart')"):
            break
    assert {"Skip to content", "Curves", "Env steps", "Smoothing", "Find metrics"} <= set(seen)
    assert "Episode return" in seen[-1]
    page.press("ArrowRight")
    assert re.search(r"128 env steps\s+first\s+1\b", text(page, ".tooltip"))
    page.press("ArrowRight")
    assert "256: first 2" in page.js("document.querySelector('.chart-card [role=status]').textContent")
    page.js("document.querySelector('[data-tab=curves]').focus()")
    page.press("ArrowRight")
    page.wait_for("document.querySelector('#panel').dataset.tab === 'dataflow'")
    page.press("ArrowRight")
    page.wait_for("document.querySelector('#panel').dataset.tab === 'episodes'")


def test_fragments_are_colored_by_utilization(opened, runs):
    page = opened("/run/first/dataflow")
    page.wait_for("document.querySelectorAll('.plan .fragment').length === 3")
    page.wait_for("document.querySelector('[data-fragment=learner]').style.getPropertyValue('--level') === '75%'")
    assert "busy 75 %" in page.js("document.querySelector('[data-fragment=learner]').textContent")
    fills = page.js("[...document.querySelectorAll('.fragment .body')].map((one) => getComputedStyle(one).fill)")
    assert len(set(fills)) == 3
    heights = page.js(
        "[...document.querySelectorAll('[data-shares=learner] rect')].slice(0, 2).map((one) => one.height.baseVal.value)"
    )
    assert heights == pytest.approx([75.0, 15.0], abs=0.1)


def test_fragments_without_utilization_are_gray(opened, runs):
    old = make_run(runs / "old", updates=0)
    with open(old / "metrics.jsonl", "w") as file:
        for update in (1, 2, 3):
            line = re.sub(r'"utilization/(environments|inference)/(busy|wait)": [\d.]+, ', "", record(update, update))
            file.write(line.replace('"loss/total"', '"utilization/environments/wait": 0.6, "loss/total"'))
    page = opened("/run/old/dataflow")
    page.wait_for("document.querySelectorAll('.plan .fragment.unknown').length === 2")
    assert "waits 60 %" in page.js("document.querySelector('[data-fragment=environments]').textContent")


def test_differences_between_runs_are_listed(opened):
    page = opened("/compare?shown=first%7Csecond")
    page.wait_for("document.querySelectorAll('.differences tbody tr').length === 2")
    rows = page.js("[...document.querySelectorAll('.differences tbody tr')].map((row) => row.innerText.split(/\\s+/))")
    assert sorted(rows) == [["agent.learning_rate", "0.001", "0.002"], ["run.seed", "0", "1"]]


def test_configuration_and_environment_are_shown(opened):
    page = opened("/run/first/configuration")
    page.wait_for("document.querySelector('.facts')")
    shown = text(page, "#panel")
    assert re.search(r"learning rate\s+0\.001", shown)
    assert re.search(r"observation\s+array\s+\[4\]\s+float32\s+\u2212∞ to 2", shown)
    page.js(
        "(() => { const box = document.querySelector('[aria-label=\"Find settings\"]');"
        " box.value = 'max_policy'; box.dispatchEvent(new Event('input')); })()"
    )
    assert text(page, ".masonry").split() == ["run", "max", "policy", "lag", "1"]


def test_metrics_search_and_constant_metrics(opened):
    page = opened("/run/first?find=loss")
    page.wait_for("document.querySelectorAll('.chart-card').length === 1")
    assert page.js("document.querySelector('.chart-card').dataset.metric") == "loss/total"
    page = opened("/run/first")
    page.wait_for("document.querySelector('.chart .series')")
    page.js("document.querySelector('details.card').open = true")
    assert re.search(r"trajectories/dropped_total\s+0\b", text(page, "details.card"))


def test_videos_play(opened, runs):
    imageio_ffmpeg = pytest.importorskip("imageio_ffmpeg")
    made = ["-y", "-loglevel", "error", "-f", "lavfi", "-i", "testsrc=duration=1:size=64x48:rate=10"]
    made += ["-pix_fmt", "yuv420p"]
    subprocess.run(
        [imageio_ffmpeg.get_ffmpeg_exe(), *made, str(runs / "first" / "episode.mp4")], check=True, timeout=150
    )
    page = opened("/run/first/episodes")
    page.wait_for("document.querySelector('video')?.readyState >= 2")
    assert page.js("[document.querySelector('video').videoWidth, document.querySelector('video').error]") == [64, None]


def test_an_evaluation_is_shown_with_its_update(opened, runs):
    (runs / "second" / "eval.json").write_text('{"update": 7, "mean_return": 12.5}')
    page = opened("/run/second/episodes")
    page.wait_for("document.querySelector('.facts')")
    assert re.search(r"Update\s+7\b", text(page, "#panel"))


def test_resumed_run_with_partial_line_is_reported(opened, runs):
    torn = make_run(runs / "torn", updates=10)
    with open(torn / "metrics.jsonl", "a") as file:
        file.write('{"update": 11, "env_st\n')
        file.writelines(record(update, (update - 8) * 0.5, **{"checkpoint/update": 8.0}) for update in (9, 10, 11, 12))
    page = opened("/run/torn?x=time")
    page.wait_for("document.querySelector('.chart .series')")
    assert "1 line of metrics.jsonl could not be read" in text(page, ".notice")
    assert page.js("document.querySelector('.chart .series').getAttribute('d').split('L').length") == 12
    assert page.js("document.querySelectorAll('.chart-card.large .resumed').length") == 1


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_has_contrast_to_its_background(opened, theme):
    page = opened("/", theme=theme)
    assert page.js("document.documentElement.dataset.theme") == theme
    ratios = page.js(
        """(() => {
          const probe = document.body.appendChild(document.createElement("i"));
          const light = (name) => {
            probe.style.color = `var(--${name})`;
            const [r, g, b] = getComputedStyle(probe).color.match(/[\\d.]+/g).map(Number)
              .map((c) => c / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
          };
          const ratio = (a, b) => (Math.max(light(a), light(b)) + 0.05) / (Math.min(light(a), light(b)) + 0.05);
          const pairs = [["ink", "busy"], ["ink", "idle"], ["warn", "warn-wash"], ["accent", "accent-wash"], ["faint", "sunken"]];
          const inks = ["ink", "soft", "faint", "accent", "good", "warn", "bad"];
          for (const ground of ["ground", "surface"]) for (const ink of inks) pairs.push([ink, ground]);
          return pairs.map(([a, b]) => [a, b, ratio(a, b)]);
        })()"""
    )
    assert [pair for pair in ratios if pair[2] < 4.5] == []


def test_the_theme_is_changed_by_a_button_and_kept(opened):
    page = opened("/", theme="dark")
    page.js("document.querySelector('#theme').click()")
    assert page.js("document.documentElement.dataset.theme") == "light"
    page.call("Page.reload")
    page.wait_for("document.querySelector('main h1')")
    assert page.js("document.documentElement.dataset.theme") == "light"
    page.js("document.querySelector('#theme').click()")
    assert page.js("document.documentElement.dataset.theme") == "dark"


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 780)])
def test_no_page_is_wider_than_its_window(opened, width, height):
    page = opened("/", width=width, height=height, mobile=width < 500)
    for path in PAGES:
        page.js(f"location.hash = '#{path}'")
        page.wait_for(f"document.title !== '' && document.querySelector('main h1') && location.hash === '#{path}'")
        page.wait_for("!document.querySelector('main .empty')?.textContent.endsWith('…')")
        assert page.js("document.documentElement.scrollWidth") <= width, path


@pytest.mark.parametrize("as_file", [False, True])
def test_no_text_of_a_plan_overlaps(browser, as_file, tmp_path):
    settings = {
        "num_envs": 1024,
        "pool_num_workers": 32,
        "rollout_length": 128,
        "max_policy_lag": 12,
        "learner_num_devices": 8,
    }
    settings |= {
        "inference_num_servers": 8,
        "inference_num_devices": 4,
        "learner_gradients": "asynchronous",
        "learner_when_full": "drop_oldest",
    }
    plans = [policy(run_config(**settings), Resources(96, "gpu", 16)) for policy in PLANS.values()]
    plans += [plan_of(4), plan_of(3, learner_when_full="drop_oldest", inference_platform="cpu")]
    if as_file:
        style, drawings = "", []
        for plan in plans:
            layout = make_layout(PIXELS, plan.shape, {"behavior_log_prob": ArraySpec((), "float32")})
            draw_plan(plan, bytes_of_plan(plan, layout, 6_700_000), tmp_path / "plan.svg", "gpu")
            drawings.append((tmp_path / "plan.svg").read_text())
    else:
        style = "".join((STATIC / name).read_text() for name in ("theme.css", "charts.css"))
        drawings = [plan_as_svg(plan) for plan in plans]
    page = browser.open_page()
    frame = page.call("Page.getFrameTree")["frameTree"]["frame"]["id"]
    page.call("Page.setDocumentContent", frameId=frame, html=f"<style>{style}</style><body>{''.join(drawings)}")
    found = page.js(
        """[...document.querySelectorAll("svg.plan")].flatMap((svg) => {
          const view = svg.viewBox.baseVal, problems = [];
          if (!svg.querySelector("style")) svg.querySelectorAll(".busy").forEach((one) => { one.textContent = "busy 100 %"; });
          const texts = [...svg.querySelectorAll("text")].filter((text) => text.textContent);
          const boxes = texts.map((text) => [text.textContent, text.getBBox()]);
          boxes.forEach(([a, p], i) => {
            const across = p.x >= view.x && p.x + p.width <= view.x + view.width;
            const inside = across && p.y >= view.y && p.y + p.height <= view.y + view.height;
            if (!inside) problems.push(`outside: ${a}`);
            for (const [b, q] of boxes.slice(i + 1)) {
              const apart = p.x >= q.x + q.width || q.x >= p.x + p.width || p.y + 2 >= q.y + q.height || q.y + 2 >= p.y + p.height;
              if (!apart) problems.push(`${a} on ${b}`);
            }
          });
          for (const box of svg.querySelectorAll(".fragment")) {
            const name = box.querySelector(".name").getBBox().width, room = box.querySelector(".body").getBBox().width;
            if (name > room) problems.push(`${box.dataset.fragment} is wider than its box`);
          }
          return problems;
        })"""
    )
    assert page.js("document.querySelectorAll('svg.plan').length") == len(drawings)
    assert found == []
    page.call("Page.close")


def test_ended_server_is_reported_and_page_stays(browser, runs):
    with contextlib.ExitStack() as stack:
        process, address = stack.enter_context(viewing(runs))
        page = browser.open_page()
        page.open(f"{address}#/run/second")
        page.wait_for("document.querySelector('.chart .series')")
        process.kill()
        page.wait_for("document.querySelector('#connection').innerText.startsWith('no answer')", seconds=30)
        assert page.js("document.querySelectorAll('.chart .series').length") > 0
        page.call("Page.close")


def test_evaluations_are_a_second_line(opened, runs):
    evaluation = Evaluation(5, 640, 2560, "greedy", 8.0, 0.0, 8.0, 8.0, 9.0, 1, 0, 0.1)
    append_evaluation(runs / "first", evaluation)
    append_evaluation(runs / "first", dataclasses.replace(evaluation, update=10, env_steps=1280, frames=5120))
    try:
        page = opened("/run/first")
        chart = "[data-metric='episode/return_mean']"
        page.wait_for(f'document.querySelectorAll("{chart} .series").length === 2')
        path = page.js(f"document.querySelector(\"{chart} .series[data-run='first, evaluated']\").getAttribute('d')")
        assert path.count("L") == 1  # two versions
        assert page.js(f'document.querySelector("{chart} .now").innerText') == "20"
    finally:
        (runs / "first" / EVALUATIONS).unlink()
