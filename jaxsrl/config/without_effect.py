"""Rejection of some flags that the plan of a run does not read."""

from envpool_bridge.errors import UserError
from jaxsrl.config.run_config import RunConfig


def validate_effect(default: RunConfig, run: RunConfig) -> None:
    """Rejects flags of budget and dataset that would have no effect.

    Args:
        default: Configuration that the flags changed.
        run: Configuration with the flags.

    Raises:
        UserError: If a flag changed an option that the plan does not read.
    """
    data = run.dataset
    if run.is_offline and run.total_env_steps != default.total_env_steps:
        raise UserError(
            f"plan offline has no env steps, but run.total_env_steps was set to {run.total_env_steps}: use "
            f"--run.gradient-steps instead"
        )
    if data.share != default.dataset.share and run.is_offline:
        raise UserError(
            f"dataset.share {data.share} has no effect: plan offline takes all experience from its dataset; omit it, or use "
            f"another plan"
        )
    if data.share != default.dataset.share and not data.path:
        raise UserError(
            f"dataset.share {data.share} has no effect: the run has no dataset; omit it, or use --dataset.path DIRECTORY with it"
        )
    if data.gradient_steps_per_update != default.dataset.gradient_steps_per_update and not run.is_offline:
        raise UserError(
            f"dataset.gradient_steps_per_update is for plan offline, not {run.plan}: omit it; agents with replay have "
            f"--agent.replay.gradient-steps-per-env-step"
        )
