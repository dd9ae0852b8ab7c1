"""Rainbow on an Atari game with the settings of its paper, and 7 GB of host memory (Hessel et al. 2018)."""

from agents.rainbow import rainbow_config
from jaxsrl import EnvConfig, EvalConfig, Experiment, NetworkConfig, ReplayMemoryConfig, RunConfig
from jaxsrl.experiment import cli

EXPERIMENT = Experiment(
    env=EnvConfig("ALE/Pong-v5", kwargs='{"terminal_on_life_loss": true}'),
    network=NetworkConfig("nature_cnn", hidden_sizes=(512,), activation="relu"),
    agent=rainbow_config(),
    run=RunConfig(
        num_envs=16,
        rollout_length=16,
        total_env_steps=10_000_000,
        eval=EvalConfig(final_episodes=10),
        replay=ReplayMemoryConfig(memory="host"),
    ),
)

if __name__ == "__main__":
    cli(EXPERIMENT)
