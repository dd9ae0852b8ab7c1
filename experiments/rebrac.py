"""ReBRAC from a dataset: --env.id ID --dataset.path DIRECTORY (Tarasov et al. 2023)."""

from agents.offline.rebrac import ReBRACConfig
from jaxsrl import CheckpointConfig, EnvConfig, EvalConfig, Experiment, NetworkConfig, ReplayConfig, RunConfig
from jaxsrl.experiment import cli


def make_experiment(env: EnvConfig = EnvConfig("Hopper-v5")) -> Experiment:
    """Returns ReBRAC with three layers and 1,024 windows per gradient step, the settings of the paper."""
    return Experiment(
        env=env,
        network=NetworkConfig(hidden_sizes=(256, 256, 256), activation="relu"),
        agent=ReBRACConfig(replay=ReplayConfig(batch_size=1024)),
        run=RunConfig(
            plan="offline",
            gradient_steps=100_000,
            checkpoint=CheckpointConfig(interval_updates=10, max_to_keep=1),
            eval=EvalConfig(every=10_000, episodes=10, final_episodes=50),
        ),
    )


if __name__ == "__main__":
    cli(make_experiment)
