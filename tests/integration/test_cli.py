"""The `jaxsrl` command on what a run leaves: which checkpoint it takes, what it prints, and how it fails."""

import dataclasses
import json
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest

import jaxsrl.cli.main
import jaxsrl.evaluation.load_agent
from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig, make_ppo
from envpool_bridge.envs.config import EnvConfig
from experiments.ppo_cartpole import EXPERIMENT
from jaxsrl.checkpoints.run_directory import write_json
from jaxsrl.checkpoints.store import MANIFEST, CheckpointStore, sign_manifest
from jaxsrl.collect.episode_log import EpisodeLog
from jaxsrl.config.parts import EvalConfig
from jaxsrl.config.run_config import RunConfig
from jaxsrl.config.serialization import to_json
from jaxsrl.evaluation import evaluate
from jaxsrl.training.run_state import begin, to_arrays

NETWORK = NetworkConfig(hidden_sizes=(4,))
ROWS = 4


def save_run(path, updates, **settings):
    """A run directory as training leaves it, without the training."""
    env, run = EnvConfig("CartPole-v1"), RunConfig(num_envs=ROWS, **settings)
    experiment = dataclasses.replace(EXPERIMENT, env=env, network=NETWORK, agent=PPOConfig(), run=run)
    identity = {"agent_name": "ppo", "experiment": to_json(experiment), "env_spec": {}}
    path.mkdir()
    write_json(path / "config.json", identity)
    spec = env.source().spec()
    agent = make_ppo(PPOConfig(), spec, NETWORK)
    store = CheckpointStore(path / "checkpoints", keep=9)
    for update in updates:
        progress = begin(agent, jax.random.key(update), ROWS, spec)
        state = dataclasses.replace(progress.state, num_updates=np.array(update, np.int32))
        metadata = {**identity, "env_steps": update * 100}
        store.save(update, to_arrays(state, None, progress.episodes, EpisodeLog(ROWS, 0, spec)), metadata)
    return path


@pytest.fixture(scope="module")
def saved_run(tmp_path_factory):
    return save_run(tmp_path_factory.mktemp("runs") / "run", (3, 7, 20))


@pytest.fixture
def run(saved_run, tmp_path):
    return shutil.copytree(saved_run, tmp_path / "run")


def evaluated(capsys, path, *flags):
    jaxsrl.cli.main.main(["evaluate", str(path), "--episodes", "4", "--json", *flags])
    printed = capsys.readouterr()
    assert printed.out.count("\n") == 1
    return json.loads(printed.out), printed.err


def stopped(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        jaxsrl.cli.main.main([str(argument) for argument in arguments])
    return stop.value.code, capsys.readouterr().err


def test_evaluate_stores_result_of_newest_checkpoint(capsys, run):
    result, warnings = evaluated(capsys, run)
    assert result["update"] == 20
    assert result["checkpoint"] == str(run / "checkpoints" / "20")
    assert {"mean_return", "std_return", "env_steps", "env_id", "seed"} <= set(result)
    assert (result["episodes"], result["greedy"], warnings) == (4, True, "")
    assert json.loads((run / "eval.json").read_text()) == result


def test_a_run_that_cannot_be_written_is_evaluated(capsys, run):
    (run / "eval.json" / "taken").mkdir(parents=True)
    result, warnings = evaluated(capsys, run)
    assert result["episodes"] == 4
    assert warnings.startswith(f"warning: {run / 'eval.json'} cannot be written (")
    assert warnings.count("\n") == 1


def test_one_checkpoint_is_evaluated_as_asked_for(capsys, run):
    result, _ = evaluated(capsys, run / "checkpoints" / "7")
    assert result["update"] == 7
    assert not (run / "eval.json").exists()


def test_other_evaluations_keep_the_runs_own(capsys, run):
    own, _ = evaluated(capsys, run)
    assert evaluated(capsys, run.with_name("run@3"))[0]["update"] == 3
    assert not evaluated(capsys, run, "--stochastic")[0]["greedy"]
    damage(run / "checkpoints" / "20")
    assert evaluated(capsys, run)[0]["update"] == 7
    assert json.loads((run / "eval.json").read_text()) == own


def test_returns_are_those_of_the_agents_that_count(capsys, tmp_path, monkeypatch):
    path = save_run(tmp_path / "run", (3,), eval=EvalConfig(agents="prey"))
    by_agent = {"hunter": (1.0, 2.0), "prey": (5.0, 7.0)}
    report = evaluate.EvaluationReport("E", (3.0, 4.5), (9, 9), 0, True, by_agent)
    monkeypatch.setattr(evaluate, "evaluate", lambda *args, **settings: report)
    assert evaluated(capsys, path)[0]["mean_return"] == 6.0
    assert json.loads((path / "eval.json").read_text())["mean_return"] == 6.0


@pytest.mark.slow
def test_evaluate_plays_the_runs_evaluation_settings(capsys, tmp_path):
    path, settings = tmp_path / "run", {"max_episode_steps": 5}
    save_run(path, (3, 7), eval=EvalConfig(env_kwargs=json.dumps(settings)))
    own, _ = evaluated(capsys, path)
    assert (own["max_return"], own["env_kwargs"]) == (5.0, settings)
    every, _ = evaluated(capsys, path, "--all")
    assert [row["max_return"] for row in every["checkpoints"]] == [5.0, 5.0]
    assert every["env_kwargs"] == settings
    other, _ = evaluated(capsys, path, "--env-kwargs", '{"max_episode_steps": 3}')
    assert (other["max_return"], other["env_kwargs"]) == (3.0, {"max_episode_steps": 3})
    training, _ = evaluated(capsys, path, "--env-kwargs", "{}")
    assert training["max_return"] > 5.0
    assert "env_kwargs" not in training
    assert json.loads((path / "eval.json").read_text()) == own


def test_a_checkpoint_that_was_copied_away_is_enough(capsys, run, tmp_path):
    alone = shutil.copytree(run / "checkpoints" / "20", tmp_path / "away" / "best")
    result, _ = evaluated(capsys, alone)
    assert result["mean_return"] == evaluated(capsys, run)[0]["mean_return"]
    assert [path.name for path in (tmp_path / "away").iterdir()] == ["best"]


def test_flags_reach_the_evaluation(capsys, run):
    greedy, _ = evaluated(capsys, run)
    assert evaluated(capsys, run)[0] == greedy
    sampled, _ = evaluated(capsys, run, "--stochastic", "--seed", "9", "--max-rows", "1")
    assert (sampled["greedy"], sampled["seed"]) == (False, 9)
    assert sampled["mean_return"] != greedy["mean_return"]
    # One row plays all episodes: other seeds than four rows with one each.
    assert evaluated(capsys, run, "--max-rows", "1")[0]["env_steps"] != greedy["env_steps"]


def test_evaluate_every_checkpoint_matches_single_evaluation(capsys, run, tmp_path):
    damage(run / "checkpoints" / "7")
    out = tmp_path / "curve.svg"
    found, warnings = evaluated(capsys, run, "--all", "--out", str(out))
    assert [row["update"] for row in found["checkpoints"]] == [3, 20]
    assert warnings.startswith("warning: damaged checkpoint skipped: ")
    alone, _ = evaluated(capsys, run / "checkpoints" / "3")
    (first, last) = found["checkpoints"]
    for name in ("mean_return", "std_return", "episodes", "env_steps", "seed", "greedy"):
        assert first[name] == alone[name]
    assert first["mean_return_low"] <= first["mean_return"] <= first["mean_return_high"]
    assert (first["env_steps_trained"], last["env_steps_trained"]) == (300, 2000)
    assert "evaluation return, mean of 4 greedy episodes" in out.read_text()


def read_video(path):
    """Frames, [N, H, W, 3], as imageio reads them: in a process of its own, because it forks and leaves its ffmpeg behind."""
    # Not list(reader), which asks for its length: infinity.
    code = (
        "import sys, numpy, imageio.v2\nreader = imageio.v2.get_reader(sys.argv[1])\n"
        "numpy.save(sys.argv[1] + '.npy', numpy.stack([frame for frame in reader]))"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=True, timeout=150)
    return np.load(f"{path}.npy")


def test_a_video_shows_the_first_episodes(capsys, run, tmp_path):
    pytest.importorskip("imageio_ffmpeg")
    pytest.importorskip("pygame")
    path = tmp_path / "out.mp4"
    plain, _ = evaluated(capsys, run, "--max-rows", "1", "--episodes", "2")
    result, _ = evaluated(
        capsys, run, "--max-rows", "1", "--episodes", "2", "--video", str(path), "--video-episodes", "2"
    )
    assert result == {**plain, "video": str(path)}
    frames = read_video(path)
    # The first frame of each episode, one after each step, and half a second at 50 frames a second between them.
    assert len(frames) == 2 + plain["env_steps"] + 25
    assert frames.shape[1:] == (400, 600, 3)
    assert len({frame.tobytes() for frame in frames}) > plain["env_steps"] // 2


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--video", "out.gif"], "expected the video to be a file *.mp4"),
        (["--video", "out.mp4", "--video-episodes", "0"], "video_episodes must be at least 1"),
    ],
)
def test_evaluate_rejects_invalid_video_before_playing(capsys, run, flags, message):
    code, printed = stopped(capsys, "evaluate", run, *flags)
    assert code == 2
    assert message in printed
    assert printed.count("\n") == 1
    assert not (run / "eval.json").exists()


def test_without_json_a_table_is_printed(capsys, run):
    jaxsrl.cli.main.main(["evaluate", str(run), "--episodes", "1"])
    printed = capsys.readouterr().out
    assert "evaluation return" in printed
    assert "evaluation of" in printed
    assert not printed.startswith("{")


def damage(checkpoint):
    manifest = json.loads((checkpoint / MANIFEST).read_text())
    victim = checkpoint / max(manifest["files"], key=lambda name: (checkpoint / name).stat().st_size)
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(data)


def test_evaluate_skips_and_keeps_damaged_checkpoint(capsys, run):
    damage(run / "checkpoints" / "20")
    result, warnings = evaluated(capsys, run)
    assert result["update"] == 7
    assert warnings.startswith(f"warning: damaged checkpoint skipped: {run / 'checkpoints' / '20'}: ")
    assert warnings.count("\n") == 1
    assert (run / "checkpoints" / "20").is_dir()
    assert not (run / "checkpoints" / "quarantine").exists()


@pytest.mark.parametrize("command", ["evaluate", "record --out new --episodes 1", "arena random", "export --out new"])
def test_one_damaged_checkpoint_is_one_line_and_status_1(capsys, run, command):
    damage(run / "checkpoints" / "20")
    name, *flags = command.split()
    code, printed = stopped(capsys, name, run / "checkpoints" / "20", *flags)
    assert code == 1
    assert printed.startswith(f"error: damaged checkpoint {run / 'checkpoints' / '20'}: ")
    assert "sha256 differs" in printed
    assert printed.count("\n") == 1


@pytest.mark.parametrize("flags", [[], ["--all"]])
def test_checkpoints_may_be_removed_while_they_are_evaluated(capsys, run, monkeypatch, flags):
    load = jaxsrl.evaluation.load_agent.load_agent

    def load_and_remove(path, **settings):
        loaded = load(path, **settings)
        for step in (7, 20):
            shutil.rmtree(run / "checkpoints" / str(step), ignore_errors=True)
        return loaded

    monkeypatch.setattr(jaxsrl.evaluation.load_agent, "load_agent", load_and_remove)
    result, warnings = evaluated(capsys, run, *flags)
    if flags:
        assert [each["update"] for each in result["checkpoints"]] == [3]
        assert warnings.count("was removed before it was read") == 2
    else:
        assert (result["update"], warnings) == (20, "")


def test_evaluate_rejects_run_without_valid_checkpoint(capsys, run):
    for step in (3, 7, 20):
        damage(run / "checkpoints" / str(step))
    code, printed = stopped(capsys, "evaluate", run)
    assert code == 2
    assert "no checkpoint of this run is whole" in printed
    assert all(f"checkpoints/{step}: " in printed for step in (3, 7, 20))


@pytest.mark.parametrize("metadata", [{}, {"agent_name": "ppo", "experiment": {"run": {}}}, {"agent_name": "mine"}])
def test_evaluate_rejects_agent_composed_in_code(capsys, tmp_path, metadata):
    path = CheckpointStore(tmp_path).save(1, {"learner.num_updates": np.array(1, np.int32)}, metadata)
    code, printed = stopped(capsys, "evaluate", path)
    assert code == 2
    assert "was composed in code: call jaxsrl.evaluation.evaluate.evaluate" in printed


def test_evaluate_names_leaves_of_another_network(capsys, run):
    # As if the metadata had been edited: the arrays are of 4 hidden units.
    path = run / "checkpoints" / "20"
    manifest = json.loads((path / MANIFEST).read_text())
    manifest["metadata"]["experiment"]["network"]["hidden_sizes"] = [5]
    (path / MANIFEST).write_text(sign_manifest(manifest))
    code, printed = stopped(capsys, "evaluate", path)
    assert code == 2
    assert "made for another network or algorithm" in printed
    assert "expected float32[4, 5], got float32[4, 4]" in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--episodes", "0"], "episodes must be at least 1"),
        (["--seed", "-1"], "seed must be at least 0"),
        (["--max-rows", "0"], "max_rows must be at least 1"),
    ],
)
def test_evaluate_rejects_invalid_numbers(capsys, run, arguments, message):
    code, printed = stopped(capsys, "evaluate", run, *arguments)
    assert code == 2
    assert printed.startswith("error: ")
    assert message in printed
    assert printed.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pool", "--env", "CartPol-v1"], "unknown environment id 'CartPol-v1'"),
        (["pool", "--envs-per-worker", "3", "--lanes-per-worker", "2"], "must divide by lanes_per_worker: got 3 and 2"),
        (["pool", "--workers", "0"], "workers must be positive: got 0"),
        (["pool", "--envs-per-worker", "0"], "--envs-per-worker must be positive: got 0"),
        (["pool", "--lanes-per-worker", "0"], "--lanes-per-worker must be positive: got 0"),
        (["pool", "--seconds", "0"], "seconds must be positive: got 0.0"),
        (["pool", "--suite", "jax"], "environments of suite 'jax' are made by jaxsrl.envs.registry"),
        (["pool", "--seconds", "inf"], "--seconds must be positive: got inf"),
        (["pool", "--competing-processes", "-1"], "--competing-processes must be 0 or more: got -1"),
        (["on-device", "--num-envs", "64", "0"], "--num-envs must be positive: got 0"),
        (["plans", "--env-steps", "0"], "--env-steps must be positive: got 0"),
        (["cluster", "--hosts", "0"], "--hosts must be positive: got 0"),
        (["train", "--num-envs", "129"], "129 rows do not divide over 2 workers x 2 lanes"),
        (["train", "--workers", "0"], "--workers must be positive: got 0"),
        (["train", "--max-policy-lag", "-1"], "--max-policy-lag must be 0 or more: got -1"),
    ],
)
def test_bench_rejects_invalid_arguments_in_one_line(capsys, arguments, message):
    code, printed = stopped(capsys, "bench", *arguments)
    assert code == 2
    assert message in printed
    assert printed.count("\n") == 1


@pytest.mark.parametrize("arguments", [["evaluate"], ["evaluate", "x", "--colour", "red"], ["fly"], ["bench", "x"], []])
def test_a_command_line_that_cannot_be_read_ends_with_status_2(capsys, arguments):
    assert stopped(capsys, *arguments)[0] == 2


def test_bench_gpu_without_accelerator_exits_with_success(capsys):
    jaxsrl.cli.main.main(["bench", "gpu"])
    assert "no accelerator here" in capsys.readouterr().out


def test_bench_gpu_names_the_files_it_knows(capsys):
    status, error = stopped(capsys, "bench", "gpu", "--files", "test_sped.py")
    assert status == 2
    assert "test_speed.py" in error


@pytest.mark.parametrize("name", jaxsrl.cli.main.COMMANDS)
def test_every_command_documents_itself_and_its_flags(capsys, name):
    with pytest.raises(SystemExit) as ended:
        jaxsrl.cli.main.main([name, "--help"])
    assert ended.value.code == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    command = jaxsrl.cli.main.COMMANDS[name]
    assert (command.__doc__ or "").splitlines()[0].split(". ")[0] in shown
    fields = [field.name for field in dataclasses.fields(command)]  # pyright: ignore
    documented = [
        line.strip().split(":")[0] for line in (command.__doc__ or "").splitlines() if line.startswith("        ")
    ]
    assert set(fields) <= set(documented)


def test_commands_end_quietly_on_ctrl_c_and_closed_pipe(tmp_path):
    for number in range(300):
        (tmp_path / f"run{number}").mkdir()
        (tmp_path / f"run{number}" / "config.json").write_text("{}")
    read_one_line = f"{sys.executable} -m jaxsrl.cli.main runs {tmp_path} --json | head -c 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", read_one_line], capture_output=True, text=True, check=True, timeout=150)
    assert (done.stdout, done.stderr) == ("{141\n", "")
    interrupt = (
        "import jaxsrl.cli.main, jaxsrl.runs.summary as m\ndef stop(path): raise KeyboardInterrupt\n"
        "m.find_runs = stop\njaxsrl.cli.main.main(['runs'])"
    )
    done = subprocess.run([sys.executable, "-c", interrupt], capture_output=True, text=True, check=False, timeout=150)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


def test_help_does_not_wait_for_jax():
    code = (
        "import sys\nfrom jaxsrl.cli.main import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\nsys.exit('jax' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "evaluate" in done.stdout
    assert "bench" in done.stdout
