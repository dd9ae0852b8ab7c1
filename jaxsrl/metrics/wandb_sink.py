"""Weights & Biases sink: one W&B run per run directory, across resumes."""

import contextlib
import secrets
from pathlib import Path
from typing import Any

from envpool_bridge.errors import UserError
from jaxsrl.checkpoints.run_directory import CONFIG, read_json
from jaxsrl.config.parts import MetricsConfig
from jaxsrl.metrics.evaluations import Evaluation
from jaxsrl.metrics.sinks import Record

RUN_ID = "wandb_run_id.txt"
"""File of a run directory with the run's W&B id."""

_INIT_SECONDS, _FINISH_SECONDS = 30.0, 60.0


class WandbSink:
    """Sends records, with env steps as the x axis of every curve. Its files are in `wandb/` of the run directory.

    The constructor reads config.json of the run directory, and starts or resumes the W&B run. WANDB_MODE and W&B's other
    environment variables apply.

    Raises:
        UserError: If the package is missing, or the user is not logged in.
        Exception: other errors of the package, for example because its service does not answer.
    """

    def __init__(self, options: MetricsConfig, directory: Path) -> None:
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
                f"cannot use Weights & Biases: {error}; log in with `wandb login`, set WANDB_MODE=offline, or remove "
                f"--metrics.wandb"
            ) from error
        self._run.define_metric("env_steps")
        self._run.define_metric("*", step_metric="env_steps")

    def write(self, record: Record) -> None:
        """Sends the record. A resumed run may send some env steps twice, which W&B's own step counter rejects."""
        self._run.log(record.to_json())

    def write_evaluation(self, evaluation: Evaluation) -> None:
        """Sends an evaluation at the env steps of its version."""
        self._run.log({**evaluation.metrics(), "env_steps": evaluation.env_steps})

    def close(self) -> None:
        """Sends the remaining records; idempotent."""
        if self._run is not None:
            run, self._run = self._run, None
            run.finish()


def run_id(directory: Path) -> str:
    """Returns the W&B id of this directory's run; creates it the first time."""
    path = directory / RUN_ID
    with contextlib.suppress(FileNotFoundError):
        known = path.read_text().strip()
        if known:
            return known
    new_id = secrets.token_hex(6)
    path.write_text(new_id + "\n")
    return new_id


def _settings(wandb: Any) -> Any:
    """Returns settings without console output and with timeouts."""
    wanted = {
        "console": "off",
        "silent": True,
        "init_timeout": _INIT_SECONDS,
        "finish_timeout": _FINISH_SECONDS,  # unsent data stays on disk for `wandb sync`
    }
    known = getattr(wandb.Settings, "model_fields", wanted)  # older versions lack some
    return wandb.Settings(**{name: value for name, value in wanted.items() if name in known})


def _wandb() -> Any:
    try:
        import wandb  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise UserError(
            "--metrics.wandb needs the package wandb: pip install 'jaxsrl[wandb]', or remove the flag"
        ) from error
    return wandb
