"""MADDPG on a multi-particle task with continuous actions (Lowe et al. 2017)."""

from agents.multi_agent.maddpg import MADDPGConfig
from jaxsrl import EnvConfig, Experiment, NetworkConfig, ReplayConfig, RunConfig
from jaxsrl.experiment import cli

EXPERIMENT = Experiment(
    env=EnvConfig("simple_spread_v3", suite="mpe", kwargs='{"continuous_actions": true}'),
    network=NetworkConfig(hidden_sizes=(64, 64), activation="relu"),
    # Every agent has its own reward, its own actor and its own critic.
    agent=MADDPGConfig(
        # Counted in steps of three agents: 1,024 windows every 100 steps of the environment, after the first 25,600.
        replay=ReplayConfig(capacity=2_000_000, batch_size=1024, min_size=76_800, gradient_steps_per_env_step=1 / 300)
    ),
    # 25,000 episodes of 25 steps.
    run=RunConfig(num_envs=96, rollout_length=25, total_env_steps=1_875_000),
)

if __name__ == "__main__":
    cli(EXPERIMENT)
