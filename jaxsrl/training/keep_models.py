"""Models that a run keeps for good."""

from pathlib import Path

from jaxsrl.config.run_config import RunConfig
from jaxsrl.models.store import MODELS, STEP, ModelStore
from jaxsrl.training.active_run import ActiveRun
from jaxsrl.training.callbacks import Callback


class KeepModels(Callback):
    """Saves a model with the tag "step-ENV_STEPS" at the first update at or past each multiple of `--checkpoint.keep-every`."""

    def on_start(self, run: ActiveRun) -> None:
        # A process that was killed right after its checkpoint has not kept the model of that.
        tag = f"{STEP}{run.env_steps}"
        if run.num_updates and tag not in ModelStore(run.directory / MODELS).tags():
            self.on_update(run)

    def has_work(self, config: RunConfig, directory: Path, num_updates: int) -> bool:
        is_kept = f"{STEP}{num_updates * config.env_steps_per_update}" in ModelStore(directory / MODELS).tags()
        return not is_kept and config.reaches_multiple(num_updates, config.checkpoint.keep_every)

    def on_update(self, run: ActiveRun) -> None:
        if run.is_at_multiple_of(run.config.checkpoint.keep_every):
            run.try_save_model([f"{STEP}{run.env_steps}"])
