"""Behavioral cloning from a dataset: --env.id ID --dataset.path DIRECTORY (Pomerleau 1991)."""

from agents.offline.bc import BCConfig
from jaxsrl import CheckpointConfig, EnvConfig, EvalConfig, Experiment, NetworkConfig, ReplayConfig, RunConfig
from jaxsrl.experiment import cli


def make_experiment(env: EnvConfig = EnvConfig("Hopper-v5")) -> Experiment:
    """Returns Behavioral cloning with 256 actions per gradient step."""
    return Experiment(
        env=env,
        network=NetworkConfig(hidden_sizes=(256, 256), activation="relu"),
        agent=BCConfig(replay=ReplayConfig(batch_size=256)),
        run=RunConfig(
            plan="offline",
            gradient_steps=50_000,
            checkpoint=CheckpointConfig(interval_updates=10, max_to_keep=1),
            eval=EvalConfig(every=10_000, episodes=10, final_episodes=50),
        ),
    )


if __name__ == "__main__":
    cli(make_experiment)
