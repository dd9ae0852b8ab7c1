"""DreamerV3 on a task that needs a memory, the RememberCue probe; for a GPU: two cores take hours."""

from agents.dreamer import DreamerConfig
from agents.ops.schedules import ScheduleConfig
from agents.world_models.sizes import WorldModelConfig
from jaxsrl import EnvConfig, EvalConfig, Experiment, NetworkConfig, ReplayConfig, RunConfig
from jaxsrl.experiment import cli

EXPERIMENT = Experiment(
    env=EnvConfig("RememberCue", suite="probe"),
    network=NetworkConfig(),
    agent=DreamerConfig(
        # Train ratio 512. The reward depends on cue and action together: a model of size 1m had not found it after 30,000 steps.
        replay=ReplayConfig(capacity=20_000, batch_size=16, min_size=2_048, samples_per_insert=16.0),
        model=WorldModelConfig("12m"),
        burn_in=8,
        sequence_length=32,
        stride=8,
        learning_rate=4e-4,
        learning_rate_schedule=ScheduleConfig("linear"),
        warmup_steps=200,
    ),
    run=RunConfig(num_envs=16, rollout_length=8, total_env_steps=30_000, eval=EvalConfig(final_episodes=100)),
)

if __name__ == "__main__":
    cli(EXPERIMENT)
