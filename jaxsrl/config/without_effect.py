"""Rejection of some flags that the plan of a run does not read."""

from typing import Any

from agents.settings import reject_other
from envpool_bridge.errors import UserError

_COLLECTING = ("capacity", "min_size", "gradient_steps_per_env_step")


def validate_effect(before: Any, after: Any) -> None:
    """Rejects flags of budget, replay, dataset and checkpoints that would have no effect.

    Args:
        before: Experiment that the flags changed.
        after: Experiment with the flags.

    Raises:
        UserError: If a flag changed an option that the plan does not read.
    """
    default, run, data = before.run, after.run, after.run.dataset
    replay = getattr(after.agent, "replay", None)
    if run.is_offline:
        reason = "plan offline collects no steps"
        reject_other("run.rollout_length", run.rollout_length, default.rollout_length, reason)
        for name in _COLLECTING if replay is not None else ():
            reject_other(f"agent.replay.{name}", getattr(replay, name), getattr(before.agent.replay, name), reason)
    if run.is_offline or run.plan == "device_only":
        name, reason = "replay_episodes", f"plan {run.plan} replays no episodes at a resume"
        reject_other(f"checkpoint.{name}", run.checkpoint.replay_episodes, default.checkpoint.replay_episodes, reason)
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
