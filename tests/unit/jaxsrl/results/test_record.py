"""Results of runs as files."""

import dataclasses
import errno
import json
import os

import pytest

from envpool_bridge.errors import UserError
from jaxsrl.results.record import make_result, read_result, read_results, write_result
from tests.unit.jaxsrl.results.runs import PROVENANCE, make, save_finished_run


def test_make_result_reads_a_finished_run(tmp_path):
    result = make_result(save_finished_run(tmp_path / "run"))
    assert dataclasses.asdict(result) == {
        "task": "Hopper-v5",
        "algorithm": "ppo",
        "preset": "ppo",
        "seed": 1,
        "env_steps": 80,
        "seconds": 5.0,
        "evaluation": {"mean_return": 100.0, "std_return": 2.5, "episodes": 20},
        # One episode a record, with the record's number as its return; a record every tenth of the steps.
        "curve": {"env_steps": list(range(8, 81, 8)), "return_mean": [float(n) for n in range(1, 11)]},
        **PROVENANCE,
    }


def test_result_comes_back_from_a_file_without_paths(tmp_path):
    result = make_result(save_finished_run(tmp_path / "run"))
    path = write_result(result, tmp_path / "results")
    assert path == tmp_path / "results" / "Hopper-v5" / "ppo-ppo-s1.json"
    assert read_result(path) == result
    assert read_results(tmp_path / "results") == [result]
    assert str(tmp_path) not in path.read_text()
    first = path.read_bytes()
    write_result(read_result(path), tmp_path / "results")
    assert path.read_bytes() == first
    assert json.loads(first)["seed"] == 1


def test_full_record_is_small(tmp_path):
    curve = {"env_steps": list(range(10**8, 10**8 + 100)), "return_mean": [-1234.56] * 100}
    assert write_result(dataclasses.replace(make(), curve=curve), tmp_path).stat().st_size < 20_000


def test_make_result_joins_the_commits_of_a_resumed_run(tmp_path):
    later = {**PROVENANCE, "commit": "v1-3-gdef", "hardware": {"cpu": "B", "cores": 4, "gpu": ""}}
    result = make_result(save_finished_run(tmp_path / "run", (PROVENANCE, later)))
    assert result.commit == "v1-2-gabc, v1-3-gdef"
    assert result.hardware["cpu"] == "B"


def test_the_command_is_that_of_the_newest_process_with_one(tmp_path):
    newer = "jaxsrl train ppo --env.id Hopper-v5 --run.seed 1 --agent.num-epochs 4"
    commands = (PROVENANCE["command"], f"{newer} --run.directory /a --run.name=b", "python my.py", "")
    run = save_finished_run(tmp_path / "run", [{**PROVENANCE, "command": command} for command in commands])
    assert make_result(run).command == newer


def test_task_with_a_slash_is_one_folder(tmp_path):
    run = save_finished_run(tmp_path / "run", env_id="ALE/Pong-v5")
    assert write_result(make_result(run, "standard"), tmp_path).relative_to(tmp_path).as_posix() == (
        "ALE-Pong-v5/ppo-standard-s1.json"
    )


def change_log(run):
    (run / "log.txt").write_text("2026-01-01 00:00:00 stopped by SIGTERM at update 10, 80 env steps, 5.0 s\n")


@pytest.mark.parametrize(("own", "rejected"), [(20, False), (21, True), (10, False)])
def test_make_result_needs_the_episodes_of_the_run(tmp_path, own, rejected):
    run = save_finished_run(tmp_path / "run")
    config = json.loads((run / "config.json").read_text())
    config["experiment"]["run"]["eval"] = {"final_episodes": own}
    (run / "config.json").write_text(json.dumps(config))
    if not rejected:
        assert make_result(run).evaluation["episodes"] == 20
        return
    with pytest.raises(UserError, match=r"has 20 episodes, fewer than .*: run `jaxsrl evaluate .* --episodes 21`"):
        make_result(run)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (change_log, "is stopped: expected a finished run"),
        (lambda run: (run / "eval.json").unlink(), "cannot read .*eval.json"),
        (lambda run: (run / "provenance.json").unlink(), "cannot read .*provenance.json"),
        (lambda run: (run / "config.json").write_text("[]"), "is no JSON object"),
    ],
)
def test_make_result_rejects_an_incomplete_run(tmp_path, change, problem):
    run = save_finished_run(tmp_path / "run")
    change(run)
    with pytest.raises(UserError, match=problem):
        make_result(run)


def test_make_result_rejects_sampled_evaluation(tmp_path):
    with pytest.raises(UserError, match="sampled actions"):
        make_result(save_finished_run(tmp_path / "run", greedy=False))


def test_make_result_rejects_an_older_version(tmp_path):
    run = save_finished_run(tmp_path / "run")
    evaluation = json.loads((run / "eval.json").read_text())
    (run / "eval.json").write_text(json.dumps({**evaluation, "update": 9}))
    with pytest.raises(UserError, match=r"is of update 9: expected the last one, 10; run `jaxsrl evaluate"):
        make_result(run)
    del evaluation["update"]
    (run / "eval.json").write_text(json.dumps(evaluation))
    with pytest.raises(UserError, match=r"is of update unknown .*: expected the last one, 10; run `jaxsrl evaluate"):
        make_result(run)


@pytest.mark.parametrize("preset", ["", "a/b", "a-b"])
def test_make_result_rejects_a_preset_that_is_no_name(tmp_path, preset):
    run = save_finished_run(tmp_path / "run", ({**PROVENANCE, "command": ""},))
    with pytest.raises(UserError, match="name of the settings"):
        make_result(run, preset)


def test_write_result_keeps_the_result_of_another_command(tmp_path):
    write_result(make(), tmp_path)
    other = dataclasses.replace(make(), command="jaxsrl train ppo --agent.num-epochs 4")
    with pytest.raises(UserError, match="choose --preset"):
        write_result(other, tmp_path)
    assert read_results(tmp_path) == [make()]
    write_result(dataclasses.replace(make(), seconds=1.0), tmp_path)
    assert read_results(tmp_path)[0].seconds == 1.0


def test_a_failed_write_keeps_the_earlier_result(tmp_path, monkeypatch):
    path = write_result(make(), tmp_path)
    no_space = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fill_the_disk(descriptor):
        raise no_space

    monkeypatch.setattr(os, "fsync", fill_the_disk)
    with pytest.raises(UserError, match="cannot write .*: No space left"):
        write_result(dataclasses.replace(make(), seconds=1.0), tmp_path)
    assert read_results(tmp_path) == [make()]
    assert list(path.parent.iterdir()) == [path]


def test_read_result_rejects_another_form(tmp_path):
    (tmp_path / "a.json").write_text('{"task": "x", "speed": 1}')
    with pytest.raises(UserError, match=r"a\.json is no result of this version"):
        read_result(tmp_path / "a.json")
