"""Weights & Biases: one run there for one run directory, however often it is resumed."""

import contextlib
import secrets
from pathlib import Path
from typing import Any

from envpool_bridge.errors import UserError
from jaxsrl.config.metrics_config import MetricsConfig
from jaxsrl.metrics.sinks import Record
from jaxsrl.run_directory import CONFIG, read_json

RUN_ID = "wandb_run_id.txt"
"""File of a run directory that holds the run's id at Weights & Biases."""

_INIT_SECONDS, _FINISH_SECONDS = 30.0, 60.0


class WandbSink:
    """Sends records; every curve is over env steps. Its own files are in `wandb/` of the run directory."""

    def __init__(self, options: MetricsConfig, directory: Path) -> None:
        """Begins the run there, or continues it. WANDB_MODE and the other variables of the environment count as ever.

        Args:
            options: project and entity.
            directory: of the run, which holds its config.json.

        Raises:
            UserError: the package is missing, or nobody is logged in.
            Exception: whatever else it raises, because its service does not answer, say.
        """
        wandb = _wandb()
        try:
            self._run: Any = wandb.init(
                project=options.wandb_project,
                entity=options.wandb_entity or None,
                name=directory.name,
                id=run_id(directory),
                resume="allow",
                dir=str(directory),
                config=read_json(directory / CONFIG),
                settings=_settings(wandb),
            )
        except wandb.errors.UsageError as error:
            raise UserError(
                f"Weights & Biases cannot be used: {error}; log in with `wandb login`, set WANDB_MODE=offline, or leave out "
                f"--run.metrics.wandb"
            ) from error
        self._run.define_metric("env_steps")
        self._run.define_metric("*", step_metric="env_steps")

    def write(self, record: Record) -> None:
        """Sends the record. A resumed run may tell of env steps a second time, which W&B's own steps could not."""
        fixed = {"update": record.update, "env_steps": record.env_steps, "frames": record.frames}
        self._run.log({**record.values, **fixed, "wall_seconds": record.wall_seconds})

    def close(self) -> None:
        """Sends what is left; idempotent."""
        if self._run is not None:
            run, self._run = self._run, None
            run.finish()


def run_id(directory: Path) -> str:
    """The id of this directory's run, made up the first time."""
    path = directory / RUN_ID
    with contextlib.suppress(FileNotFoundError):
        known = path.read_text().strip()
        if known:
            return known
    made = secrets.token_hex(6)
    path.write_text(made + "\n")
    return made


def _settings(wandb: Any) -> Any:
    """Leaves the terminal alone, and waits for nothing without end."""
    wanted = {
        "console": "off",
        "silent": True,
        "init_timeout": _INIT_SECONDS,
        "finish_timeout": _FINISH_SECONDS,  # what was not sent by then stays on the disk, for `wandb sync`
    }
    known = getattr(wandb.Settings, "model_fields", wanted)  # older versions lack some
    return wandb.Settings(**{name: value for name, value in wanted.items() if name in known})


def _wandb() -> Any:
    try:
        import wandb  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise UserError(
            "--run.metrics.wandb needs the package wandb: pip install jaxsrl[wandb], or leave the flag out"
        ) from error
    return wandb
