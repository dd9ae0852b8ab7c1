"""Decision Transformer from a dataset: --env.id ID --dataset.path DIRECTORY (Chen et al. 2021)."""

from agents.offline.decision_transformer import DecisionTransformerConfig
from agents.ops.schedules import ScheduleConfig
from jaxsrl import CheckpointConfig, EnvConfig, EvalConfig, Experiment, NetworkConfig, ReplayConfig, RunConfig
from jaxsrl.experiment import cli


def make_experiment(env: EnvConfig = EnvConfig("Hopper-v5", last_reward=True)) -> Experiment:
    """Returns a Decision Transformer with the settings of the paper, 64 windows of 20 steps per gradient step."""
    return Experiment(
        env=env,
        network=NetworkConfig(hidden_sizes=(128,), activation="relu"),
        agent=DecisionTransformerConfig(
            replay=ReplayConfig(batch_size=64), learning_rate_schedule=ScheduleConfig("constant", warmup=0.1)
        ),
        run=RunConfig(
            plan="offline",
            gradient_steps=100_000,
            checkpoint=CheckpointConfig(interval_updates=10, max_to_keep=1),
            eval=EvalConfig(every=10_000, episodes=10, final_episodes=50),
        ),
    )


if __name__ == "__main__":
    cli(make_experiment)
