"""Rejection of changed options that the plan of a run does not read."""

from envpool_bridge.errors import UserError
from jaxsrl.config.run_config import RunConfig


def validate_effect(default: RunConfig, run: RunConfig) -> None:
    """Rejects flags that would have no effect.

    Args:
        default: Configuration that the flags changed.
        run: Configuration with the flags.

    Raises:
        UserError: a flag changed an option that the plan does not read.
    """
    if run.is_offline and run.total_env_steps != default.total_env_steps:
        raise UserError(
            f"plan offline has no env steps, but run.total_env_steps was set to {run.total_env_steps}: use "
            f"--run.gradient-steps with it"
        )
    if run.dataset.share != default.dataset.share and (run.is_offline or not run.dataset.path):
        why = "plan offline takes all experience from its dataset" if run.is_offline else "the run has no dataset"
        raise UserError(
            f"dataset.share {run.dataset.share} has no effect: {why}; omit it, or use --dataset.path with another plan"
        )
    if run.dataset.gradient_steps_per_update != default.dataset.gradient_steps_per_update and not run.is_offline:
        raise UserError(
            f"dataset.gradient_steps_per_update is for plan offline, not {run.plan}: use agent.replay.samples_per_insert with it"
        )
