"""DreamerV3 of the smallest size on a task of the DeepMind Control suite, from states, through EnvPool."""

from agents.dreamer import DreamerConfig
from agents.ops.schedules import ScheduleConfig
from agents.world_models.sizes import WorldModelConfig
from jaxsrl import EnvConfig, EvalConfig, Experiment, NetworkConfig, PoolConfig, ReplayConfig, RunConfig
from jaxsrl.experiment import cli

EXPERIMENT = Experiment(
    env=EnvConfig("CartpoleSwingup-v1", suite="envpool"),
    network=NetworkConfig(),
    agent=DreamerConfig(
        # Train ratio 128 for CPUs: a gradient step for every 4 env steps. The paper's ratio is 1024: a gradient step on 16 windows
        # of 64 steps for each env step, imagined from all states.
        replay=ReplayConfig(capacity=1_000_000, batch_size=16, min_size=2_048, gradient_steps_per_env_step=0.25),
        model=WorldModelConfig("1m"),
        sequence_length=32,
        imagine_last=8,
        learning_rate=4e-4,
        learning_rate_schedule=ScheduleConfig("linear"),
        warmup_steps=200,
    ),
    run=RunConfig(
        num_envs=16,
        rollout_length=16,
        total_env_steps=100_000,
        pool=PoolConfig(num_workers=1, lanes_per_worker=1),
        eval=EvalConfig(final_episodes=10),
    ),
)

if __name__ == "__main__":
    cli(EXPERIMENT)
