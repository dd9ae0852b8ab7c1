"""Models that a run keeps for good."""

from jaxsrl.training.active_run import ActiveRun
from jaxsrl.training.callbacks import Callback


class KeepModels(Callback):
    """Saves a model with the tag "step-ENV_STEPS" at the first update at or past each multiple of `--checkpoint.keep-every`."""

    def on_update(self, run: ActiveRun) -> None:
        if run.is_at_multiple_of(run.config.checkpoint.keep_every):
            run.save_model([f"step-{run.env_steps}"])
