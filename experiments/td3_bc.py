"""TD3+BC from a dataset: --env.id ID --dataset.path DIRECTORY (Fujimoto and Gu 2021)."""

from agents.offline.td3_bc import TD3BCConfig
from jaxsrl import CheckpointConfig, EnvConfig, EvalConfig, Experiment, NetworkConfig, ReplayConfig, RunConfig
from jaxsrl.experiment import cli


def make_experiment(env: EnvConfig = EnvConfig("Hopper-v5")) -> Experiment:
    """Returns TD3+BC with the settings of the paper, 256 windows per gradient step."""
    return Experiment(
        env=env,
        network=NetworkConfig(hidden_sizes=(256, 256), activation="relu"),
        agent=TD3BCConfig(replay=ReplayConfig(batch_size=256)),
        run=RunConfig(
            plan="offline",
            gradient_steps=100_000,
            checkpoint=CheckpointConfig(interval_updates=10, max_to_keep=1),
            eval=EvalConfig(every=10_000, episodes=10, final_episodes=50),
        ),
    )


if __name__ == "__main__":
    cli(make_experiment)
