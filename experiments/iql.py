"""IQL from a dataset: --env.id ID --dataset.path DIRECTORY (Kostrikov et al. 2022)."""

from agents.offline.iql import IQLConfig
from agents.ops.schedules import ScheduleConfig
from jaxsrl import CheckpointConfig, EnvConfig, EvalConfig, Experiment, NetworkConfig, ReplayConfig, RunConfig
from jaxsrl.experiment import cli


def make_experiment(env: EnvConfig = EnvConfig("Hopper-v5")) -> Experiment:
    """Returns IQL with the settings of the paper for locomotion."""
    return Experiment(
        env=env,
        network=NetworkConfig(hidden_sizes=(256, 256), activation="relu"),
        agent=IQLConfig(replay=ReplayConfig(batch_size=256), actor_schedule=ScheduleConfig("cosine")),
        run=RunConfig(
            plan="offline",
            gradient_steps=100_000,
            checkpoint=CheckpointConfig(interval_updates=10, max_to_keep=1),
            eval=EvalConfig(every=10_000, episodes=10, final_episodes=50),
        ),
    )


if __name__ == "__main__":
    cli(make_experiment)
