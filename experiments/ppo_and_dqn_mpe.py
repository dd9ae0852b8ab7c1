"""PPO hunters and a DQN prey in one game, predator and prey of the multi-particle environments (Lowe et al. 2017)."""

from agents.dqn import DQNConfig
from agents.ppo import PPOConfig
from jaxsrl import EnvConfig, Experiment, NetworkConfig, ReplayConfig, RunConfig
from jaxsrl.experiment import cli
from jaxsrl.population.policies import PoliciesConfig

EXPERIMENT = Experiment(
    env=EnvConfig("simple_tag_v3", suite="mpe"),
    agent=PPOConfig(learning_rate=5e-4, entropy_coef=0.01),
    network=NetworkConfig(hidden_sizes=(64, 64)),
    policies=PoliciesConfig(
        mapping='{"adversary_*": "hunters", "*": "prey"}',
        agents={
            "prey": DQNConfig(
                learning_rate=1e-3,
                replay=ReplayConfig(
                    capacity=100_000, batch_size=64, min_size=1_000, gradient_steps_per_env_step=1 / 32
                ),
            )
        },
        networks={"prey": NetworkConfig(hidden_sizes=(128,), activation="relu")},
    ),
    # 16 environments of three hunters and their prey.
    run=RunConfig(num_envs=64, rollout_length=25, total_env_steps=1_000_000),
)

if __name__ == "__main__":
    cli(EXPERIMENT)
