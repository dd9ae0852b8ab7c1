"""The page of results and its pictures."""

import re
from pathlib import Path

import numpy as np
import pytest

from envpool_bridge.errors import UserError
from jaxsrl.cli.find_experiment import find_experiment
from jaxsrl.results.draw import draw_results, draw_task, return_limits
from jaxsrl.results.page import format_page
from jaxsrl.results.record import folder_name, read_results, write_result
from jaxsrl.results.task_list import Reference, read_references, read_tasks
from jaxsrl.terminal.format import format_number
from tests.unit.jaxsrl.results.runs import make

ROOT = Path(__file__).parents[4]
REFERENCE = Reference("Hopper-v5", "ppo", 2410.4, 1_000_000, "zoo, v3", "https://example.org/a")
THREE = [make(seed=seed, returns=returns) for seed, returns in enumerate((90.0, 100.0, 140.0))]


def cells(page, settings):
    line = next(line for line in page.splitlines() if line.startswith("|") and f"| {settings} |" in line)
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_results_page_is_drawn_from_the_records():
    results = read_results(ROOT / "results")
    page = ROOT / "docs" / "results.md"
    assert page.read_text() == format_page(results, read_references(ROOT / "results")), "run `jaxsrl results`"
    pictures = {path.name for path in (page.parent / "pictures" / "results").glob("*.svg")}
    assert pictures == {f"{folder_name(result.task)}.svg" for result in results}


def test_listed_runs_are_of_known_experiments():
    tasks = read_tasks(ROOT / "results")
    assert len(tasks) > 15
    for task in tasks:
        assert find_experiment(task.experiment).is_file()
    for result in read_results(ROOT / "results"):
        assert not re.search(r"/(home|tmp|root|work)/", result.command + str(result.hardware))


def test_table_has_mean_and_student_interval():
    row = cells(format_page(THREE, [REFERENCE]), "ppo")
    half = 4.3027 * np.std([90, 100, 140], ddof=1) / np.sqrt(3)
    interval = f"{format_number(110 - half)} to {format_number(110 + half)}"
    assert row[:8] == ["Hopper-v5", "ppo", "ppo", "3", "110.0", interval, "80", "1.5"]
    assert row[8] == "2,410.4 at 1,000,000 ([zoo, v3](https://example.org/a))"


def test_one_seed_has_no_interval_and_no_reference():
    assert cells(format_page([make(preset="other")], []), "other")[3:] == ["1", "100.0", "-", "80", "1.5", "-"]


def test_axis_of_returns_follows_means_not_intervals():
    low, high = return_limits([np.array([20.0, 220.0]), np.array([]), np.array([100.0])])
    assert (low, high) == (0.0, 240.0)
    assert return_limits([np.array([5.0])]) == (4.0, 6.0)
    assert return_limits([np.array([])]) == (-1.0, 1.0)


def test_page_shows_command_and_origin():
    page = format_page([make(task="A-v0", preset="dqn_x", algorithm="dqn"), *THREE], [])
    assert page.index("## Hopper-v5") > 0
    block = page[page.index("## Hopper-v5") :]
    assert "```\njaxsrl train ppo --env.id Hopper-v5 --run.seed 0\n```" in block
    assert "Made with jaxsrl 0.2.0, mujoco 3.5 (commit v1-2-gabc) on A CPU, 2 cores." in block
    assert block.count("Made with") == 1
    assert "](pictures/results/Hopper-v5.svg)" in block


def test_page_without_records_says_so():
    assert format_page([], [REFERENCE]).endswith("There are no records yet.\n")


@pytest.fixture
def records(tmp_path):
    directory = tmp_path / "results"
    for result in [*THREE, make(preset="other", algorithm="sac"), make(task="ALE/Pong-v5")]:
        write_result(result, directory)
    (directory / "references.toml").write_text("")
    return directory


def drawn(records, tmp_path):
    pictures = tmp_path / "docs" / "pictures" / "results"
    (tmp_path / "docs").mkdir(exist_ok=True)
    assert draw_results(records, tmp_path / "docs" / "results.md") == 5
    files = [tmp_path / "docs" / "results.md", *sorted(pictures.iterdir())]
    return {path.name: path.read_bytes() for path in files}


def test_draw_results_writes_equal_bytes_again(records, tmp_path):
    first = drawn(records, tmp_path)
    assert set(first) == {"results.md", "Hopper-v5.svg", "ALE-Pong-v5.svg"}
    (tmp_path / "docs" / "pictures" / "results" / "Gone-v0.svg").write_text("of a task without records")
    with (tmp_path / "docs" / "results.md").open("a") as page:
        page.write("![Learning curves](pictures/results/Gone-v0.svg)")
    assert drawn(records, tmp_path) == first
    assert max(map(len, first.values())) < 100_000


def test_picture_has_a_light_background(tmp_path):
    draw_task(THREE, tmp_path / "a.svg")  # dark ink on white is legible on a dark page, too
    text = (tmp_path / "a.svg").read_text()
    assert "fill: #ffffff" in text
    assert "<text" not in text


def test_drawn_curve_is_the_mean_over_seeds(monkeypatch, tmp_path):
    import jaxsrl.results.draw

    panels = []
    monkeypatch.setattr(jaxsrl.results.draw, "draw_panel", lambda axes, drawn, *_: panels.append(drawn))
    draw_task(THREE, tmp_path / "a.svg")
    (group,), mean = panels[0], panels[0][0].mean
    assert len(group.group.curves) == 3
    np.testing.assert_allclose(mean.mean, np.linspace(2.0, 3.0, 100))
    np.testing.assert_allclose(mean.high - mean.mean, 4.30265 * 1.0 / np.sqrt(3), rtol=1e-4)


def test_read_tasks_rejects_two_of_one_name(tmp_path):
    entry = '[[runs]]\ntask = "A"\nexperiment = "ppo"\n'
    (tmp_path / "tasks.toml").write_text(entry + entry)
    with pytest.raises(UserError, match="2 entries A-ppo: give each a `preset`"):
        read_tasks(tmp_path)


@pytest.mark.parametrize(
    "text", ["[[runs]\n", '[[runs]]\ntask = "A"\n', '[[runs]]\ntask = "A"\nexperiment = "b"\nx = 1\n']
)
def test_read_tasks_rejects_another_form(tmp_path, text):
    (tmp_path / "tasks.toml").write_text(text)
    with pytest.raises(UserError, match=r"tasks\.toml"):
        read_tasks(tmp_path)


def test_read_tasks_rejects_a_name_that_no_file_can_have(tmp_path):
    (tmp_path / "tasks.toml").write_text('[[runs]]\ntask = "A"\nexperiment = "ppo-cartpole"\n')
    with pytest.raises(UserError, match="got preset 'ppo-cartpole'"):
        read_tasks(tmp_path)
