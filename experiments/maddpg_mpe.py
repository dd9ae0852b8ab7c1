"""MADDPG on a multi-particle task with continuous actions (Lowe et al. 2017)."""

from agents.multi_agent.maddpg import MADDPGConfig
from jaxsrl import EnvConfig, Experiment, NetworkConfig, ReplayConfig, RunConfig
from jaxsrl.experiment import cli

EXPERIMENT = Experiment(
    env=EnvConfig("simple_spread_v3", suite="mpe", kwargs='{"continuous_actions": true}'),
    network=NetworkConfig(hidden_sizes=(64, 64), activation="relu"),
    # Every agent has its own reward, its own actor and its own critic.
    agent=MADDPGConfig(
        actor_learning_rate=1e-3,
        critic_learning_rate=1e-3,
        replay=ReplayConfig(capacity=300_000, batch_size=256, min_size=9_600, samples_per_insert=1.0),
    ),
    run=RunConfig(num_envs=96, rollout_length=25, total_env_steps=1_000_000),
)

if __name__ == "__main__":
    cli(EXPERIMENT)
