"""CQL from a dataset: --env.id ID --dataset.path DIRECTORY (Kumar et al. 2020)."""

from agents.offline.cql import CQLConfig
from jaxsrl import CheckpointConfig, EnvConfig, EvalConfig, Experiment, NetworkConfig, ReplayConfig, RunConfig
from jaxsrl.experiment import cli


def make_experiment(env: EnvConfig = EnvConfig("Hopper-v5")) -> Experiment:
    """Returns CQL with ten sampled actions of each kind."""
    return Experiment(
        env=env,
        network=NetworkConfig(hidden_sizes=(256, 256), activation="relu"),
        agent=CQLConfig(replay=ReplayConfig(batch_size=256)),
        run=RunConfig(
            plan="offline",
            gradient_steps=20_000,
            checkpoint=CheckpointConfig(interval_updates=10, max_to_keep=1),
            eval=EvalConfig(every=5_000, episodes=10, final_episodes=50),
        ),
    )


if __name__ == "__main__":
    cli(make_experiment)
