"""CQL for discrete actions from a dataset: --env.id ID --dataset.path DIRECTORY (Kumar et al. 2020)."""

from agents.offline.discrete_cql import DiscreteCQLConfig
from jaxsrl import CheckpointConfig, EnvConfig, EvalConfig, Experiment, NetworkConfig, ReplayConfig, RunConfig
from jaxsrl.experiment import cli


def make_experiment(env: EnvConfig = EnvConfig("CartPole-v1")) -> Experiment:
    """Returns CQL for discrete actions with a weight of 1 on the conservative term."""
    return Experiment(
        env=env,
        network=NetworkConfig(hidden_sizes=(256, 256), activation="relu"),
        agent=DiscreteCQLConfig(replay=ReplayConfig(batch_size=256), target_update_period=500, learning_rate=3e-4),
        run=RunConfig(
            plan="offline",
            gradient_steps=20_000,
            checkpoint=CheckpointConfig(interval_updates=10, max_to_keep=1),
            eval=EvalConfig(every=5_000, episodes=10, final_episodes=50),
        ),
    )


if __name__ == "__main__":
    cli(make_experiment)
