"""Speed of algorithms beyond PPO on the host's environments, each next to its own baseline or the published figure."""

import statistics

import pytest

from agents.networks.config import NetworkConfig
from envpool_bridge.envs.config import EnvConfig
from jaxsrl.bench.on_device import bench_on_device
from jaxsrl.bench.train import measure_training
from jaxsrl.metrics.record_file import SPEED, read_steady_records
from tests.gpu.conftest import DRY
from tests.gpu.test_speed import WORKERS, cells, size_of
from tests.gpu.train_command import command, ends

pytestmark = pytest.mark.gpu


@pytest.mark.seconds(40)
def test_device_only_against_a_flat_program(row, size):
    for measured in bench_on_device(size((2_048, 8_192), (8,)), size(128, 8), seconds=size(4.0, 0.1))["sizes"]:
        row(
            f"device_only CartPole-v1, {measured['num_envs']:,} rows, 4 epochs x 4 minibatches, MLP 64x64",
            f"{measured['env_steps_per_second']['jaxsrl']:,.0f} env steps/s",
            f"{measured['ratio']['flat_ppo']:.2f} of PureJaxRL's program, {measured['rounds']} turns",
        )


@pytest.mark.seconds(30)
def test_speed_of_halfcheetah(row, size):
    pytest.importorskip("mujoco", reason="not run: mujoco is not installed")
    measured = measure_training(
        WORKERS,
        size(16, 2) * WORKERS,
        env_steps=size(1_500_000, 600),
        env=EnvConfig("HalfCheetah-v5"),
        network=NetworkConfig(hidden_sizes=(64, 64)),
    )
    row(f"train HalfCheetah-v5: {size_of(measured)}", *cells(measured))


RUNS = {
    "alphazero": (
        "alphazero_connect_four",
        ("--run.num-envs", "1024", "--run.total-env-steps", "300000", "--agent.replay.min-size", "32768"),
        ("--run.num-envs", "4", "--run.total-env-steps", "128", "--agent.replay.min-size", "64", "--agent.window", "4"),
        ("--agent.gumbel.num-simulations", "32"),
    ),
    "dreamer": (
        "dreamer_cartpole",
        ("--agent.model.size", "12m", "--run.total-env-steps", "8000"),
        ("--run.total-env-steps", "1024", "--agent.replay.min-size", "256", "--agent.sequence-length", "16"),
        (),
    ),
}


@pytest.mark.seconds(80)
@pytest.mark.parametrize("name", RUNS)
def test_speed_of_whole_runs(name, row, tmp_path):
    if name == "alphazero":
        pytest.importorskip("pgx", reason="not run: pgx is not installed")
    experiment, full, tiny, always = RUNS[name]
    flags = (*(tiny if DRY else full), *always, "--metrics.interval-seconds", "1")
    status, output = ends(command(experiment, tmp_path, *flags))
    assert status == 0, output[-1000:]
    records = read_steady_records(tmp_path / "run" / "metrics.jsonl")
    speed = statistics.median(record.get(SPEED, 0.0) for record in records)
    row(f"{experiment} {' '.join(flags[:-2])}", f"{speed:,.0f} env steps/s")
