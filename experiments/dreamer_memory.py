"""DreamerV3 on a task that needs a memory, the RememberCue probe."""

from agents.dreamer import DreamerConfig
from agents.ops.schedules import ScheduleConfig
from agents.world_models.sizes import WorldModelConfig
from jaxsrl import EnvConfig, EvalConfig, Experiment, NetworkConfig, ReplayConfig, RunConfig
from jaxsrl.experiment import cli

EXPERIMENT = Experiment(
    env=EnvConfig("RememberCue", suite="probe"),
    network=NetworkConfig(),
    agent=DreamerConfig(
        # Train ratio 256.
        replay=ReplayConfig(capacity=20_000, batch_size=16, min_size=512, gradient_steps_per_env_step=1.0),
        # Smaller than size 1m: this task is learned within 6,000 env steps on one core.
        model=WorldModelConfig("1m", deter=256, hidden=128, units=128, stoch=4),
        burn_in=4,
        sequence_length=16,
        stride=8,
        imagination_length=8,
        imagine_last=8,
        learning_rate=1e-3,
        learning_rate_schedule=ScheduleConfig("linear"),
        warmup_steps=200,
    ),
    run=RunConfig(num_envs=16, rollout_length=8, total_env_steps=6_000, eval=EvalConfig(final_episodes=100)),
)

if __name__ == "__main__":
    cli(EXPERIMENT)
