"""EfficientZero on an Atari game with 100,000 env steps, in the settings of Ye et al. 2021 (arXiv:2111.00210, appendix A).

Differences: grayscale images of 84 x 84 pixels, as recorded, in a latent vector (`docs/algorithms/muzero.md`), Gumbel search with
50 simulations, 8 environments, and no 20,000 gradient steps after the last env step. A gradient step for each env step needs an
accelerator.
"""

from agents.muzero import MuZeroConfig
from agents.ops.optimizers import OptimizerConfig
from agents.ops.schedules import ScheduleConfig
from agents.search.gumbel import GumbelConfig
from jaxsrl import EnvConfig, EvalConfig, Experiment, NetworkConfig, ReplayConfig, ReplayMemoryConfig, RunConfig
from jaxsrl.experiment import cli

EXPERIMENT = Experiment(
    env=EnvConfig("ALE/Pong-v5", kwargs='{"terminal_on_life_loss": true, "clip_rewards": true}'),
    network=NetworkConfig("impala_resnet", hidden_sizes=(256,), activation="relu", layer_norm=True),
    agent=MuZeroConfig(
        replay=ReplayConfig(
            capacity=100_000, batch_size=256, min_size=2_000, gradient_steps_per_env_step=1.0, priority_exponent=0.6
        ),
        gumbel=GumbelConfig(num_simulations=50),
        latent_size=512,
        n_step_decay_fraction=0.3,
        discount=0.997**4,
        consistency_coef=2.0,
        projection_size=1024,
        value_prefix=True,
        reanalyze_fraction=0.99,
        learning_rate=0.2,
        learning_rate_schedule=ScheduleConfig(warmup=0.01),
        optimizer=OptimizerConfig("sgd", weight_decay=1e-4, max_grad_norm=5.0, momentum=0.9),
        importance_sampling_exponent=0.4,
    ),
    run=RunConfig(
        num_envs=8,
        rollout_length=16,
        total_env_steps=100_000,
        eval=EvalConfig(final_episodes=32),
        replay=ReplayMemoryConfig(memory="host"),
    ),
)

if __name__ == "__main__":
    cli(EXPERIMENT)
