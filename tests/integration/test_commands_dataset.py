"""`jaxsrl record`, `jaxsrl dataset`, and the commands of the page about datasets."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import jaxsrl.cli.main
from jaxsrl.datasets.dataset import find_episodes, open_dataset
from jaxsrl.datasets.manifest import leaf_file
from tests.unit.jaxsrl.datasets.test_datasets import random_steps, write

PAGE = Path(__file__).parents[2] / "docs" / "how_to" / "datasets.md"
SHORT = {
    "train": "--run.total-env-steps 1024 --run.num-envs 8 --pool.num-workers 1 --run.rollout-length 16 --agent.replay.min-size 256 "
    "--eval.final-episodes 2",
    "record": "--env-steps 300 --max-rows 4",
    "offline": "--run.gradient-steps 20 --dataset.gradient-steps-per-update 10 --eval.every 10 --eval.episodes 1 "
    "--run.name offline",
    "online": "--run.name online",
    "recorded": "--run.name recorded",
}


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))


def commands_of_the_page():
    blocks = re.findall(r"^```\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return [shlex.split(line, comments=True)[1:] for block in blocks for line in block.splitlines()]


def shorten(arguments):
    if arguments[0] == "record":
        return [
            *arguments[: arguments.index("--env-steps")],
            *SHORT["record"].split(),
            *arguments[arguments.index("--env-steps") + 2 :],
        ]
    if arguments[0] == "train":
        kind = "online" if "--dataset.path" in arguments else "recorded" if "recorded" in arguments else ""
        kind = "offline" if "offline" in arguments else kind
        own = SHORT[kind].split() if kind else ["--run.name", "dqn_cartpole_seed0"]  # of the command without more flags
        return [*arguments, *SHORT["train"].split(), *own]
    return arguments


@pytest.mark.slow
@pytest.mark.usefixtures("here")
def test_the_commands_of_the_page_run(capsys):
    pytest.importorskip("minari", reason="needs the extra minari")
    commands = [command for command in commands_of_the_page() if command[0] != "record-sets"]  # hours: test_record_sets
    assert len(commands) == 15
    for arguments in commands:
        if arguments[0] == "train":  # ends its process
            command = [sys.executable, "-m", "jaxsrl.cli.main", *shorten(arguments)]
            subprocess.run(command, check=True, timeout=300)
        else:
            jaxsrl.cli.main.main(shorten(arguments))
    capsys.readouterr()
    jaxsrl.cli.main.main(["dataset", "info", "cartpole_medium", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert told["env_steps"] >= 300
    assert told["origin"] == {
        "run": "runs/dqn_cartpole_seed0",
        "agent": "dqn",
        "update": 8,
        "epsilon": 0.3,
        "mode": "greedy",
        "seed": 0,
    }
    assert told["normalized_score"] == pytest.approx(100 * (told["mean_return"] - 22) / (500 - 22))
    assert told["episodes"] == len(find_episodes(open_dataset(Path("cartpole_again")).steps).returns)
    file = leaf_file("reward")
    with open(f"cartpole_mixed/{file}", "r+b") as data:
        data.seek(-5, 2)
        data.write(b"\x07")
    with pytest.raises(SystemExit) as ended:
        jaxsrl.cli.main.main(["dataset", "verify", "cartpole_mixed", "--json"])
    assert ended.value.code == 1
    printed = capsys.readouterr()
    assert json.loads(printed.out)["damaged"] == 1
    assert f"cartpole_mixed/{file}: shard" in printed.err


@pytest.mark.usefixtures("here")
def test_datasets_are_described_scored_and_merged(capsys):
    for number in (1, 2):
        write(Path(f"set{number}"), random_steps(100, number), [100])
    for arguments in (["score", "set1", "--random", "0", "--expert", "2"], ["merge", "set1", "set2", "--out", "both"]):
        jaxsrl.cli.main.main(["dataset", *arguments])
    jaxsrl.cli.main.main(["dataset", "verify", "both"])
    capsys.readouterr()
    told = {}
    for name in ("set1", "set2", "both"):
        jaxsrl.cli.main.main(["dataset", "info", name, "--json"])
        told[name] = json.loads(capsys.readouterr().out)
    assert told["set1"]["normalized_score"] == pytest.approx(50 * told["set1"]["mean_return"])
    assert told["set2"]["normalized_score"] is None
    assert told["both"]["env_steps"] == told["set1"]["env_steps"] + told["set2"]["env_steps"]


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (["--random", "3", "--expert", "3"], "must differ: got 3 for both"),
        (["--expert", "1"], "must differ: got 1 for both"),
        ([], "use --random, --expert"),
    ],
)
def test_scores_that_describe_nothing_are_rejected(capsys, scores, message):
    write(Path("set"), random_steps(10, 0), [10], score_random=1.0)
    before = Path("set/manifest.json").read_bytes()
    with pytest.raises(SystemExit) as ended:
        jaxsrl.cli.main.main(["dataset", "score", "set", *scores])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
    assert Path("set/manifest.json").read_bytes() == before


@pytest.mark.usefixtures("here")
def test_a_file_of_d4rl_is_converted(capsys):
    h5py = pytest.importorskip("h5py", reason="needs the extra minari")
    with h5py.File("walk.hdf5", "w") as data:
        data["observations"], data["actions"] = np.zeros((4, 3)), np.zeros((4, 1))
        data["rewards"], data["terminals"] = np.arange(4.0), np.array([False, True, False, True])
    command = ["dataset", "convert", "walk.hdf5", "--to", "jaxsrl", "--out", "set", "--json"]
    with pytest.raises(SystemExit):
        jaxsrl.cli.main.main(command)
    assert "--max-episode-steps" in capsys.readouterr().err
    jaxsrl.cli.main.main([*command, "--max-episode-steps", "1000"])
    told = json.loads(capsys.readouterr().out)
    assert (told["env_steps"], told["episodes"], told["max_return"]) == (4, 2, 5.0)


@pytest.mark.usefixtures("here")
def test_the_page_of_a_dataset_lists_and_counts_episodes(capsys):
    dataset = write(Path("set<1>"), random_steps(200, 1), [200], origin={"agent": "<test>"})
    episodes = find_episodes(dataset.steps)
    jaxsrl.cli.main.main(["dataset", "view", "set<1>"])
    assert capsys.readouterr().out.strip() == "set<1>/view.html"
    page = Path("set<1>/view.html").read_text()
    assert "<h1>set&lt;1&gt;</h1>" in page
    assert "&lt;test&gt;" in page
    rows = re.findall(r"<tr><td>(\d+)</td><td>(\d+)</td><td>(\d+)</td><td>(\d+)</td><td>(-?[\d.]+)</td>", page)
    assert [int(row[3]) for row in rows] == episodes.lengths.tolist()
    assert [float(row[4]) for row in rows] == pytest.approx(episodes.returns.tolist(), abs=0.006)
    bars = [int(count) for count in re.findall(r"<title>(\d+) of ", page)]
    assert sum(bars) == 2 * len(rows) > 40
    counts, _ = np.histogram(episodes.returns, 40)
    assert bars[:40] == counts.tolist()
    jaxsrl.cli.main.main(["dataset", "verify", "set<1>"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["dataset", "info", "nowhere"], "expected the directory of a dataset"),
        (["dataset", "info", "one", "two"], "takes one dataset: got one, two"),
        (["dataset", "merge", "one"], "writes another dataset: use --out"),
        (["dataset", "verify"], "needs a dataset"),
        (["record", "nowhere", "--out", "set"], "a number of episodes or of env steps"),
    ],
)
@pytest.mark.usefixtures("here")
def test_wrong_requests_are_rejected_in_one_line(capsys, arguments, message):
    with pytest.raises(SystemExit) as ended:
        jaxsrl.cli.main.main(arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
