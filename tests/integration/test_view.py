"""`jaxsrl view`: who is answered and what, over HTTP."""

import contextlib
import http.client
import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest

from jaxsrl.cli.main import main
from tests.integration.view_runs import make_run, record

SECONDS = 60
VIDEO = bytes(range(256)) * 8


@contextlib.contextmanager
def viewing(path, *flags):
    """The command's process and the address that it prints."""
    command = [sys.executable, "-m", "jaxsrl.cli.main", "view", str(path), "--no-browser", *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        said = process.stdout.readline()
        match = re.search(r"http://127\.0\.0\.1:\d+/[\w-]{16,}/", said)
        assert match, (said, process.communicate(timeout=SECONDS))
        yield process, match[0]
    finally:
        process.kill()
        process.communicate(timeout=SECONDS)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs")
    make_run(directory / "first")
    make_run(directory / "group" / "second", seed=1)
    (directory / "first" / "episode.mp4").write_bytes(VIDEO)
    (directory / "first" / "secret.txt").write_text("secret")
    return directory


@pytest.fixture(scope="module")
def url(runs):
    with viewing(runs) as (_, address):
        yield address


def ask(url, path="", host=None, method="GET", headers=(), body=None):
    """(status, headers, body) of an answer."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=SECONDS)
    try:
        connection.putrequest(method, parts.path + path, skip_host=True)
        connection.putheader("Host", host or parts.netloc)
        for name, value in headers:
            connection.putheader(name, value)
        if body is not None:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def post_control(url, run, action, name="", value=0.0):
    """(status, answer) of a request to a run, as the page sends it."""
    body = json.dumps({"run": run, "action": action, "name": name, "value": value}).encode()
    status, _, answer = ask(url, "api/control", method="POST", headers=page_headers(url), body=body)
    return status, json.loads(answer)


def page_headers(url, **changes):
    parts = urlsplit(url)
    headers = {"Origin": f"{parts.scheme}://{parts.netloc}", "Content-Type": "application/json"}
    return [(name, value) for name, value in {**headers, "Sec-Fetch-Site": "same-origin", **changes}.items() if value]


def ask_json(url, path):
    status, _, body = ask(url, path)
    assert status == 200, body
    return json.loads(body)


def test_the_page_and_all_that_it_loads_comes_from_here(url):
    _, headers, body = ask(url)
    assert headers["content-type"].startswith("text/html")
    assert not re.search(rb"https?://", body)
    loaded = re.findall(r'(?:src|href)="(static/[^"]+)"', body.decode())
    directory = Path("jaxsrl/web/static")
    assert {path.removeprefix("static/") for path in loaded} <= {path.name for path in directory.iterdir()}
    for path in [*loaded, *(f"static/{file.name}" for file in directory.glob("*.js"))]:
        status, _, content = ask(url, path)
        assert status == 200
        assert not re.search(rb"(from|import\(|url\()\s*[\"']?https?:", content), path


def test_modules_import_only_files_that_are_there():
    directory = Path("jaxsrl/web/static")
    for file in directory.glob("*.js"):
        for name in re.findall(r'from "\./([^"]+)"', file.read_text()):
            assert (directory / name).is_file(), f"{file.name} imports {name}"


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost@evil", "192.168.0.7", ""]
)
def test_view_rejects_foreign_host_name(url, host):
    status, _, body = ask(url, "api/runs", host=host or " ")
    assert status in (400, 403)
    assert b"first" not in body


@pytest.mark.parametrize("host", ["localhost", "localhost:9999", "127.0.0.1:1", "[::1]:80", "LOCALHOST"])
def test_this_machine_by_any_of_its_names_and_ports_is_answered(url, host):
    assert ask(url, "api/runs", host=host)[0] == 200


@pytest.mark.parametrize("token", ["", "wrong", "../", "%2e%2e"])
def test_view_requires_the_token(url, token):
    parts = urlsplit(url)
    for path in ("", "api/runs", "static/main.js", "api/details?run=first"):
        status, _, body = ask(f"{parts.scheme}://{parts.netloc}/{token}/", path)
        assert status == 403
        assert b"jaxsrl view" in body


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_view_rejects_changing_methods(url, method):
    assert ask(url, "api/runs", method=method)[0] == 403


@pytest.mark.parametrize(
    "changes",
    [
        {"Origin": ""},
        {"Origin": "null"},
        {"Origin": "http://evil.example"},
        {"Origin": "http://127.0.0.1:1"},
        {"Content-Type": "text/plain"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_view_rejects_requests_from_other_sites(url, changes):
    body = b'{"run": "first", "action": "stop", "name": "", "value": 0}'
    status, _, answer = ask(url, "api/control", method="POST", headers=page_headers(url, **{**changes}), body=body)
    assert (status, b"from the page itself" in answer) == (403, True)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"run": "nobody", "action": "stop", "name": "", "value": 0}', 404),
        (b'{"run": "../first", "action": "stop", "name": "", "value": 0}', 404),
        (b'{"run": "first", "action": "stop", "name": "", "value": 0}', 200),
        (b'{"run": "first", "action": "stop", "name": "", "value": "x"}', 400),
        (b"[]", 400),
        (b"no json", 400),
        (b"[" * 4000, 400),
        (b'{"run": "first", "action": "set", "name": "x", "value": 1%s}' % (b"0" * 400), 400),
        (b" " * 5000, 413),
    ],
)
def test_requests_to_runs_are_validated(url, body, status):
    assert ask(url, "api/control", method="POST", headers=page_headers(url), body=body)[0] == status


def test_responses_forbid_foreign_resources_and_frames(url):
    for path in ("", "static/main.js", "api/runs", "nothing", "video?run=first&name=episode.mp4"):
        headers = ask(url, path)[1]
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize(
    "path",
    [
        "static/../app.py",
        "static/%2e%2e/app.py",
        "static/..%2fapp.py",
        "static/",
        "video?run=first&name=secret.txt",
        "video?run=first&name=../group/second/config.json",
        "video?run=first&name=%2Fetc%2Fpasswd",
        "video?run=../first&name=episode.mp4",
        "video?run=group/second&name=episode.mp4",
        "api/details?run=..",
        "api/details?run=%2Fetc",
        "api/details",
        "api/plan.svg?run=nobody",
        "api/checkpoints?run=first%2F..%2Fgroup%2Fsecond",
        "openapi.json",
    ],
)
def test_view_serves_only_listed_files(url, path):
    status, _, body = ask(url, path)
    assert status == 404
    assert b"secret" not in body
    assert b"root:" not in body


def test_view_lists_runs_with_state(url, runs):
    found = ask_json(url, "api/runs")
    assert (found["root"], found["unread"]) == (str(runs), 0)
    assert [run["name"] for run in found["runs"]] == ["first", "group/second"]
    first = found["runs"][0]
    assert (first["state"], first["update"], first["num_updates"]) == ("finished", 20, 20)
    assert (first["env"], first["agent"], first["seed"]) == ("CartPole-v1", "ppo", 0)
    assert (first["training_return"], first["evaluation_return"]) == (20.0, None)


@pytest.mark.parametrize("file", ["metrics.jsonl", "evaluations.jsonl"])
def test_an_unreadable_run_does_not_hide_the_others(url, runs, file):
    broken = make_run(runs / "broken")
    (broken / file).unlink(missing_ok=True)
    (broken / file).mkdir()  # unreadable for root, too
    try:
        problems = {run["name"]: run["problem"] for run in ask_json(url, "api/runs")["runs"]}
        records = ask_json(url, "api/records?run=broken@&run=first@")
    finally:
        shutil.rmtree(broken)
    assert (problems["first"], list(problems)) == ("", ["broken", "first", "group/second"])
    assert (file in problems["broken"]) == (file == "metrics.jsonl")
    assert file in records["broken"]["problem"]
    assert records["first"]["columns"]["update"]


@pytest.mark.parametrize(("values", "status"), [('{"rate": NaN}', 200), ("3", 404)])
def test_damaged_population_is_no_server_error(url, runs, values, status):
    state = runs / "population.json"
    state.write_text('{"history": [[{"source": null, "score": NaN, "values": ' + values + "}]]}")
    try:
        answered, _, body = ask(url, f"api/population?name={runs.name}")
    finally:
        state.unlink()
    assert answered == status
    assert (b'"rate":"nan"' if status == 200 else b"of another version") in body


def test_records_come_once_and_new_ones_after_them(url, runs):
    answer = ask_json(url, "api/records?run=first@")["first"]
    assert answer["columns"]["update"] == list(range(1, 21))
    with open(runs / "first" / "metrics.jsonl", "a") as file:
        file.write(record(21, 10.5) + record(22, 11.0)[:30])
        file.flush()
        later = ask_json(url, f"api/records?run=first@{answer['cursor']}&run=nobody@&run=group/second@")
        assert later["first"]["columns"]["update"] == [21]
        assert not later["first"]["restart"]
        assert set(later) == {"first", "group/second"}
        file.write(record(22, 11.0)[30:])
    last = ask_json(url, f"api/records?run=first@{later['first']['cursor']}")["first"]
    assert last["columns"]["update"] == [22]


def test_view_reports_details_plan_and_checkpoints(url, runs):
    details = ask_json(url, f"api/details?run={quote('group/second', safe='')}")
    assert details["experiment"]["run"]["seed"] == 1
    assert details["env_spec"]["observation"]["low"] == [-1.0, "-infinity"]
    assert details["path"] == str(runs / "group" / "second")
    status, headers, body = ask(url, "api/plan.svg?run=first")
    assert (status, headers["content-type"]) == (200, "image/svg+xml")
    assert body.count(b'class="fragment"') == 3
    assert ask_json(url, "api/checkpoints?run=first") == {"checkpoints": [], "versions": {}, "quarantine": []}


def test_a_video_can_be_watched_from_its_middle(url):
    status, headers, body = ask(url, "video?run=first&name=episode.mp4", headers=[("Range", "bytes=256-511")])
    assert (status, headers["content-type"], body) == (206, "video/mp4", VIDEO[256:512])
    assert ask(url, "video?run=first&name=episode.mp4")[2] == VIDEO


def test_ctrl_c_stops_with_a_connected_browser(runs):
    with viewing(runs) as (process, address):
        parts = urlsplit(address)
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=SECONDS)
        connection.request("GET", parts.path)
        connection.getresponse().read()  # kept alive
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=SECONDS)
        connection.close()
    assert process.returncode == 0
    assert errors == ""


@pytest.mark.parametrize("case", ["missing", "file", "empty", "port taken", "port too large"])
def test_view_rejects_invalid_arguments_in_one_line(runs, tmp_path, url, capsys, case):
    file = tmp_path / "file"
    file.write_text("")
    (tmp_path / "empty").mkdir()
    port = urlsplit(url).port
    arguments, named = {
        "missing": ((tmp_path / "nowhere",), "nowhere"),
        "file": ((file,), "file"),
        "empty": ((tmp_path / "empty",), "no run"),
        "port taken": ((runs, "--port", port), str(port)),
        "port too large": ((runs, "--port", 65536), "65535"),
    }[case]
    with pytest.raises(SystemExit) as ended:
        main(["view", "--no-browser", *map(str, arguments)])
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert re.fullmatch(r"error: [^\n]+\n", said.err)
    assert named in said.err


def test_the_page_needs_no_jax():
    code = "import sys, jaxsrl.web.server; sys.exit('jax' in sys.modules or 'matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=SECONDS).returncode == 0


def test_view_changes_no_files(runs, url):
    def state():
        return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in runs.rglob("*")}

    before = state()
    for path in ("api/runs", "api/records?run=first@", "api/details?run=first", "api/checkpoints?run=first"):
        assert ask(url, path)[0] == 200
    assert state() == before
