"""DreamerV3 of the smallest size on CartPole-v1."""

from agents.dreamer import DreamerConfig
from agents.ops.schedules import ScheduleConfig
from agents.world_models.sizes import WorldModelConfig
from jaxsrl import EnvConfig, EvalConfig, Experiment, NetworkConfig, ReplayConfig, RunConfig
from jaxsrl.experiment import cli

EXPERIMENT = Experiment(
    env=EnvConfig("CartPole-v1"),
    network=NetworkConfig(),
    agent=DreamerConfig(
        # Train ratio 128: 2 windows of 64 steps for each env step.
        replay=ReplayConfig(capacity=50_000, batch_size=16, min_size=2_048, gradient_steps_per_env_step=0.125),
        model=WorldModelConfig("1m"),
        imagine_last=8,
        # The paper's 4e-5 is for more gradient steps than these 6,000; the decay keeps what was learned.
        learning_rate=4e-4,
        learning_rate_schedule=ScheduleConfig("linear"),
        warmup_steps=200,
    ),
    run=RunConfig(num_envs=8, rollout_length=16, total_env_steps=50_000, eval=EvalConfig(final_episodes=50)),
)

if __name__ == "__main__":
    cli(EXPERIMENT)
