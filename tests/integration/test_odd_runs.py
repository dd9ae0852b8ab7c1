"""Runs that are links, on disks that cannot be written, damaged, or thousands: none is left out, and none hides another."""

import asyncio
import io
import json
import os
import re
from pathlib import Path

import pytest

from jaxsrl.cli.main import main
from jaxsrl.metrics.record_file import RETURN, RecordFile
from jaxsrl.plots.run_curve import read_curves
from jaxsrl.runs.summary import find_runs, summarize
from jaxsrl.web.app import make_app
from jaxsrl.web.runs import Runs
from tests.integration.test_commands_runs import listed, make_run

DEEP = "[" * 100_000
BAD_FILES = {
    "config.json": (DEEP, "{", "[]", '{"experiment": 3}', "\xff"),
    "metrics.jsonl": (
        DEEP + "\n",
        '{"update"\n',
        '{"update": 1, "env_steps": 1, "wall_seconds": 1.0, "\\ud800": 2.0}\n',
    ),
    "evaluations.jsonl": (DEEP + "\n",),
    "eval.json": (DEEP, "[]"),
    "plan.json": (DEEP, "[]"),
}


@pytest.fixture
def good(tmp_path):
    return make_run(tmp_path / "runs" / "good", [1.0, 2.0])


def served(root, *queries):
    """Returns the page's answers to queries."""
    app, answers = make_app(Runs(root), "token"), []

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    for query in queries:
        path, _, parameters = query.partition("?")
        sent: list[dict] = []

        async def send(message, sent=sent):
            sent.append(message)

        scope = {"type": "http", "method": "GET", "path": f"/token/{path}", "root_path": "", "http_version": "1.1"}
        scope |= {"query_string": parameters.encode(), "headers": [(b"host", b"localhost")], "scheme": "http"}
        asyncio.run(app(scope, receive, send))
        answers.append(json.loads(b"".join(message.get("body", b"") for message in sent)))
    return answers


@pytest.mark.parametrize(
    ("file", "number"), [(file, n) for file, texts in BAD_FILES.items() for n in range(len(texts))]
)
def test_a_bad_file_hides_no_other_run(capsys, good, tmp_path, file, number):
    bad = make_run(good.parent / "bad", [1.0])
    (bad / file).write_bytes(BAD_FILES[file][number].encode("latin-1"))
    assert [run["name"] for run in listed(capsys, good.parent)] == ["bad", "good"]
    main(["plot", str(good.parent), "--group-by", "run", "--out", str(tmp_path / "plot.svg"), "--json"])
    assert str(good) in capsys.readouterr().out
    queries = ["api/runs", "api/records?run=good@&run=bad@", "api/details?run=bad", "api/details?run=good"]
    assert [run["name"] for run in served(good.parent, *queries)[0]["runs"]] == ["bad", "good"]


def test_names_need_not_be_printable(capsys, monkeypatch, good):
    for name in (b"bad\xff", b"red\x1b[31m"):
        make_run(Path(os.fsdecode(os.fsencode(good.parent) + b"/" + name)), [1.0])
    names = ["bad\\udcff", "good", "red\\x1b[31m"]
    assert [run["name"] for run in listed(capsys, good.parent)] == names
    (page,) = served(good.parent, "api/runs")
    assert [run["name"] for run in page["runs"]] == names
    strict = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with monkeypatch.context() as patched:
        patched.setattr("sys.stdout", strict)
        main(["runs", str(good.parent)])
    strict.flush()
    table = strict.buffer.getvalue().decode()
    assert all(name in table for name in names)
    with pytest.raises(SystemExit, match="2"):
        main(["runs", os.fsdecode(b"none\x1b[31m\xff")])
    assert "none\\x1b[31m\\udcff" in capsys.readouterr().err


def test_links_to_runs_are_runs(capsys, good, tmp_path):
    elsewhere = make_run(tmp_path / "disk" / "big", [3.0, 4.0], seed=1)
    (good.parent / "big").symlink_to(elsewhere)
    (good.parent / "disk").symlink_to(elsewhere.parent)  # no run itself: not followed, so there are no loops
    (good.parent / "loop").symlink_to(good.parent)
    (good.parent / "again").symlink_to(good)  # is listed without its link
    (good.parent / "gone").symlink_to(tmp_path / "none")
    assert [run["name"] for run in listed(capsys, good.parent)] == ["big", "good"]
    curves, _ = read_curves([good.parent], "steps", "episode/return_mean")
    assert [curve.path.name for curve in curves] == ["big", "good"]
    (page,) = served(good.parent, "api/runs")
    assert [run["name"] for run in page["runs"]] == ["big", "good"]


def test_an_unreadable_directory_is_listed(capsys, monkeypatch, good):
    (good.parent / "closed").mkdir()
    scan = os.scandir

    def refuse(path):
        if Path(path).name == "closed":
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    assert [(run["name"], bool(run["problem"])) for run in listed(capsys, good.parent)] == [
        ("closed", True),
        ("good", False),
    ]


@pytest.mark.parametrize("newest_has_a_return", [True, False])
def test_summaries_read_the_end_of_long_records(tmp_path, monkeypatch, newest_has_a_return):
    run = make_run(tmp_path / "run", [float(n) for n in range(2000)])
    if not newest_has_a_return:
        with (run / "metrics.jsonl").open("a") as file:
            file.write('{"update": 2001, "env_steps": 200100, "wall_seconds": 2001.0}\n')
    whole, reads = RecordFile(run / "metrics.jsonl"), []
    whole.refresh()
    refresh = RecordFile.refresh
    monkeypatch.setattr(RecordFile, "refresh", lambda self: reads.append(self) or refresh(self))
    summary = summarize(run)
    assert (summary.update, summary.training_return) == (whole.last("update"), whole.last(RETURN))
    assert len(reads) == (not newest_has_a_return)


def test_the_page_says_how_many_runs_it_leaves_out(monkeypatch, good):
    make_run(good.parent / "other", [1.0])
    monkeypatch.setattr("jaxsrl.web.runs._MOST_RUNS", 1)
    (page,) = served(good.parent, "api/runs")
    assert (len(page["runs"]), page["num_runs"]) == (1, 2)


@pytest.mark.parametrize("flag", ["--runs"])
def test_a_missing_directory_of_runs_has_no_clean_report(capsys, tmp_path, flag):
    with pytest.raises(SystemExit, match="2"):
        main(["doctor", flag, str(tmp_path / "none")])
    assert re.search("there is none at .*none", capsys.readouterr().err)


def test_search_ends_at_runs(good):
    make_run(good / "inside", [1.0])
    assert find_runs(good.parent) == [good]
