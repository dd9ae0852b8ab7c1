"""MAPPO, one policy for all agents and values that see everything, on a multi-particle task (Yu et al. 2022)."""

from agents.ppo import PPOConfig
from jaxsrl import EnvConfig, Experiment, NetworkConfig, RunConfig
from jaxsrl.experiment import cli

EXPERIMENT = Experiment(
    # Without the global state (IPPO), values see what their agents see.
    env=EnvConfig("simple_spread_v3", suite="mpe", kwargs='{"team_reward": "mean", "global_state": true}'),
    network=NetworkConfig(hidden_sizes=(64, 64)),
    agent=PPOConfig(learning_rate=7e-4, num_epochs=10, num_minibatches=1, entropy_coef=0.01),
    run=RunConfig(num_envs=96, rollout_length=25, total_env_steps=2_000_000),
)

if __name__ == "__main__":
    cli(EXPERIMENT)
