"""`jaxsrl results`: finished runs become records, and records the page."""

import pytest

from jaxsrl.cli.main import main
from jaxsrl.results.record import read_results
from tests.unit.jaxsrl.results.runs import save_finished_run


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Changes to a directory with an empty list of references and of tasks."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    (tmp_path / "results").mkdir()
    for name in ("references.toml", "tasks.toml"):
        (tmp_path / "results" / name).write_text("")
    return tmp_path


def test_results_add_records_and_draw_shows_them(here, capsys):
    runs = [save_finished_run(here / "runs" / str(seed), seed=seed) for seed in (0, 1)]
    main(["results", "add", *map(str, runs)])
    assert "written to results/Hopper-v5/ppo-ppo-s1.json" in capsys.readouterr().out
    assert [result.seed for result in read_results(here / "results")] == [0, 1]
    main(["results"])
    assert capsys.readouterr().out == "written to docs/results.md: 2 results\n"
    assert "| Hopper-v5 | ppo | ppo | 2 |" in (here / "docs" / "results.md").read_text()
    assert (here / "docs" / "pictures" / "results" / "Hopper-v5.svg").is_file()


def test_results_add_takes_a_preset(here):
    main(["results", "add", str(save_finished_run(here / "run")), "--preset", "small"])
    assert read_results(here / "results")[0].preset == "small"


def test_results_run_without_missing_runs_ends(here):
    main(["results", "run", "--hours", "1"])


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["add"], "expected at least one run directory"),
        (["draw", "runs/a"], "draw takes all results: got runs/a"),
        (["run", "--hours", "-1"], "--hours must not be negative"),
        (["run", "ppo"], "no entry of the tasks is named 'ppo'"),
        (["draw", "--directory", "nowhere"], "cannot read nowhere/references.toml"),
    ],
)
def test_results_rejects_invalid_requests(here, capsys, arguments, problem):
    with pytest.raises(SystemExit) as ended:
        main(["results", *arguments])
    assert ended.value.code == 2
    assert problem in capsys.readouterr().err
