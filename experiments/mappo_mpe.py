"""MAPPO with the authors' settings for simple_spread: recurrent, one policy, values that see everything (Yu et al. 2022).

With --env.suite jax --plan device_only one compiled program trains on the task in JAX.
"""

from agents.ops.optimizers import OptimizerConfig
from agents.ppo import PPOConfig
from jaxsrl import EnvConfig, Experiment, NetworkConfig, RunConfig
from jaxsrl.experiment import cli

EXPERIMENT = Experiment(
    # Without the global state (IPPO), values see what their agents see.
    env=EnvConfig("simple_spread_v3", suite="mpe", kwargs='{"team_reward": "mean", "global_state": true}'),
    network=NetworkConfig(
        hidden_sizes=(64, 64), activation="relu", layer_norm=True, core="gru", core_size=64, shared_torso=False
    ),
    agent=PPOConfig(
        learning_rate=7e-4,
        num_epochs=10,
        num_minibatches=1,
        value_clip_epsilon=0.2,
        value_huber_delta=10.0,
        value_coef=1.0,
        value_normalization="moments",
        optimizer=OptimizerConfig(max_grad_norm=10.0),
    ),
    # 128 environments of three agents, 20 million steps each.
    run=RunConfig(num_envs=384, rollout_length=25, total_env_steps=60_000_000, max_policy_lag=0),
)

if __name__ == "__main__":
    cli(EXPERIMENT)
