"""BCQ from a dataset: --env.id ID --dataset.path DIRECTORY (Fujimoto et al. 2019)."""

from agents.offline.bcq import BCQConfig
from jaxsrl import CheckpointConfig, EnvConfig, EvalConfig, Experiment, NetworkConfig, ReplayConfig, RunConfig
from jaxsrl.experiment import cli


def make_experiment(env: EnvConfig = EnvConfig("Hopper-v5")) -> Experiment:
    """Returns BCQ with the settings of the paper, 100 windows per gradient step."""
    return Experiment(
        env=env,
        network=NetworkConfig(hidden_sizes=(400, 300), activation="relu"),
        agent=BCQConfig(replay=ReplayConfig(batch_size=100)),
        run=RunConfig(
            plan="offline",
            gradient_steps=100_000,
            checkpoint=CheckpointConfig(interval_updates=10, max_to_keep=1),
            eval=EvalConfig(every=10_000, episodes=10, final_episodes=50),
        ),
    )


if __name__ == "__main__":
    cli(make_experiment)
