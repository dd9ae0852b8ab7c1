"""PPG on images, an Atari game, with the paper's settings for Procgen (Cobbe et al. 2021)."""

from agents.ppg import PPGConfig
from agents.transforms.normalization import NormalizationConfig
from jaxsrl import EnvConfig, EvalConfig, Experiment, NetworkConfig, RunConfig
from jaxsrl.experiment import cli

EXPERIMENT = Experiment(
    env=EnvConfig("ALE/Pong-v5"),
    network=NetworkConfig("impala_resnet", hidden_sizes=(256,), activation="relu"),
    agent=PPGConfig(normalization=NormalizationConfig(rewards=True)),
    run=RunConfig(num_envs=64, rollout_length=256, total_env_steps=25_000_000, eval=EvalConfig(final_episodes=10)),
)

if __name__ == "__main__":
    cli(EXPERIMENT)
