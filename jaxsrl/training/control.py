"""Run-time control: requests of `jaxsrl control` and of the page, answered between two updates."""

import time
from pathlib import Path

from envpool_bridge.errors import UserError
from jaxsrl.runs.control import ACTIONS, PAUSED, TRAINING, Answer, ControlFiles, Request
from jaxsrl.training.active_run import ActiveRun
from jaxsrl.training.callbacks import Callback

_POLL_SECONDS = 0.5


class Control(Callback):
    """Pauses, resumes, saves and stops a run, and changes its values, as requests in its directory say."""

    def __init__(self) -> None:
        self._files: ControlFiles | None = None
        self._is_paused = False
        self._polled = 0.0

    def on_start(self, run: ActiveRun) -> None:
        self._files = ControlFiles(run.directory)

    def on_update(self, run: ActiveRun) -> None:
        if time.monotonic() - self._polled < _POLL_SECONDS:
            return
        self._poll(run)
        while self._is_paused and not run.should_stop():
            run.wait(_POLL_SECONDS)
            self._poll(run)

    def on_checkpoint(self, run: ActiveRun, path: Path) -> None:
        self._polled = 0.0  # a save takes long: requests wait no longer

    def close(self) -> None:
        if self._files is not None:
            self._files.close()

    def _poll(self, run: ActiveRun) -> None:
        files = self._files
        if files is None:
            return
        self._polled = time.monotonic()
        for name, request in files.take():
            was_paused = self._is_paused
            answer = self._apply(run, request)
            if self._is_paused != was_paused:
                files.write_state(PAUSED if self._is_paused else TRAINING)
            files.answer(name, answer)

    def _apply(self, run: ActiveRun, request: Request | None) -> Answer:
        if request is None or request.action not in ACTIONS:
            known = ", ".join(ACTIONS)
            return Answer(error=f"the run cannot read the request: expected one of {known}, sent to this process of it")
        try:
            text = self._act(run, request)
        except UserError as error:
            return Answer(error=str(error))
        if request.action != "status":
            run.log(f"control: {text}")
        status = {
            "state": PAUSED if self._is_paused else TRAINING,
            "update": run.num_updates,
            "env_steps": run.env_steps,
            "values": dict(run.values),
        }
        return Answer(text=text, status=status)

    def _act(self, run: ActiveRun, request: Request) -> str:
        """Does what a request says; returns a sentence. Raises UserError where the run cannot."""
        at = f"update {run.num_updates}"
        if request.action == "pause":
            run.validate_control("pause")
            self._is_paused = True
            return f"paused after {at}"
        if request.action == "resume":
            was_paused, self._is_paused = self._is_paused, False
            return f"resumed after {at}" if was_paused else f"not paused: trains at {at}"
        if request.action == "save":
            if not run.save():
                raise UserError(f"the checkpoint of {at} was not written: the run's log.txt says why")
            return f"saved the checkpoint of {at}"
        if request.action == "stop":
            run.stop("requested by control")
            return f"stops after {at}"
        if request.action == "set":
            run.set_value(request.name, request.value)
            return f"set {request.name} to {request.value:g} after {at}"
        return f"{PAUSED if self._is_paused else TRAINING} at {at}"
