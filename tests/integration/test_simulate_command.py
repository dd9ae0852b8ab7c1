"""`jaxsrl plan EXPERIMENT --simulate`: what they print, and what they refuse."""

import dataclasses
import json

import pytest

import jaxsrl.cli.main
from jaxsrl.planner.calibration import Calibration, load_calibration

CARTPOLE = "experiments/ppo_cartpole.py"
MEASURED = Calibration(
    experiment="ppo_cartpole",
    env_id="CartPole-v1",
    cores=2,
    cpu="test",
    row_seconds=1e-3,
    part_seconds=1e-4,
    step_cv=0.2,
    act=((8, 1e-4), (64, 2e-4)),
    update=((64, 0.1), (128, 0.15)),
    update_cores=1.6,
    update_flops=((64, 1e9), (128, 2e9)),
    rollout_length=4,
    doorbell_seconds=3e-6,
    handover_seconds=5e-5,
    copy_bytes_per_second=1e10,
    row_bytes=1e3,
    params_bytes=1e5,
    gradients_per_update=32,
)

SAME = ("--run.rollout-length", "4")


def simulate(*flags: str) -> None:
    jaxsrl.cli.main.main(["plan", CARTPOLE, "--simulate", *flags])


def test_simulate_prints_prediction_as_json(tmp_path, capsys):
    MEASURED.save(tmp_path / "c.json")
    simulate("--calibration", str(tmp_path / "c.json"), "--cores", "32", "--gpus", "2", "--json", *SAME)
    said = json.loads(capsys.readouterr().out)
    assert said["note"].startswith("predictions")
    (found,) = said["predicted"]
    assert (found["cores"], found["gpus"]) == (32, 2)
    assert 0 < found["env_steps_per_second"] <= 32 / 1e-3


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--calibration", "none.json"), "make it with --calibrate"),
        (("--cores", "16"), "needs both --cores and --gpus"),
        (("--cores", "16", "--gpus", "2", "--network", "pigeons", *SAME), "expected a network of"),
        (("--network", "100gbe", *SAME), "have their own network: omit --network 100gbe"),
        (("--check", "--network", "100gbe", *SAME), "runs on this machine: omit --network 100gbe"),
        (("--check", "--cores", "16", "--gpus", "2", *SAME), "runs on this machine: omit --cores 16, --gpus 2"),
        (("--env.id", "Acrobot-v1", *SAME), "but this is ppo_cartpole in Acrobot-v1"),
        (("--run.rollout-length", "8"), "but this is ppo_cartpole in CartPole-v1 with --run.rollout-length 8"),
        (("--plan", "single_learner_coarse"), "expected --plan single_learner_fine, decoupled"),
        (("--plan", "serial", "--calibrate"), "got serial: use one of them with --simulate"),
    ],
)
def test_simulate_rejects_unsupported_plan_in_one_line(tmp_path, capsys, flags, says):
    MEASURED.save(tmp_path / "c.json")
    with pytest.raises(SystemExit) as ended:
        simulate("--calibration", str(tmp_path / "c.json"), *flags)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1


def test_simulate_rejects_calibration_of_another_experiment(tmp_path, capsys):
    dataclasses.replace(MEASURED, experiment="a2c_cartpole").save(tmp_path / "c.json")
    with pytest.raises(SystemExit) as ended:
        simulate("--calibration", str(tmp_path / "c.json"), *SAME)
    assert ended.value.code == 2
    assert "was measured with a2c_cartpole in CartPole-v1" in capsys.readouterr().err


@pytest.mark.slow
def test_a_calibration_is_measured_on_this_machine(tmp_path):
    sizes = ("--run.rollout-length", "8", "--network.hidden-sizes", "16", "--cores", "8", "--gpus", "2")
    simulate("--calibrate", "--calibration", str(tmp_path / "c.json"), *sizes)
    found = load_calibration(tmp_path / "c.json")
    assert 1e-7 < found.row_seconds < 1e-3
    assert all(0 < seconds < 1 for _, seconds in (*found.act, *found.update))
    assert found.update_flops
    assert 1e-7 < found.doorbell_seconds < 1e-3
    assert found.handover_seconds >= 0
    assert found.gradients_per_update == 32
