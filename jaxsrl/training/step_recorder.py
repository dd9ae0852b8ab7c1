"""Recording of all steps of a run into a dataset, while the run trains."""

import dataclasses
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

from agents.api import Trajectory
from envpool_bridge.errors import UserError
from envpool_bridge.shm.slots import SlotViews
from envpool_bridge.spec.tree import leaves
from jaxsrl.checkpoints.run_directory import CONFIG
from jaxsrl.collect.episode_log import EpisodeLog
from jaxsrl.config.run_config import RunConfig
from jaxsrl.datasets.dataset import open_dataset
from jaxsrl.datasets.manifest import Manifest, read_manifest
from jaxsrl.datasets.writer import DatasetWriter, is_dataset
from jaxsrl.learner.mesh import as_trajectory
from jaxsrl.machine.waits import wait_for_result
from jaxsrl.plan.plan import Plan
from jaxsrl.replay.fixed import join_rows
from jaxsrl.replay.host.storage import continuing_rows
from jaxsrl.training.preflight import runs_on_device
from jaxsrl.training.setup import TrainingSetup

_MAX_PENDING = 2  # copies of slots that wait for the disk
_FIRST_STEP = "first_step"


class StepRecorder:
    """Writer of a dataset, which appends copies of slots in a thread of its own. It waits where the disk is slower than the run.

    Thread-safety: one thread.

    Args:
        path: directory of the dataset. A resumed run continues it from the step of its checkpoint, with the first slot.
        manifest: Manifest of the dataset without steps; its origin says which run it is of.
        step: step of the run at which the next slot starts.
        timeout_seconds: longest wait for the disk.

    Raises:
        UserError: If the directory has files of something else, or the dataset does not end at this step.
    """

    def __init__(self, path: Path, manifest: Manifest, step: int, timeout_seconds: float) -> None:
        self._path, self._num_kept = path, num_kept_steps(path, manifest, step)
        self._open = partial(open_writer, path, manifest, step)
        # A writer drops later steps than these, which are lost if the run cannot continue.
        self._writer = None if self._num_kept else self._open()
        self._timeout_seconds = timeout_seconds
        self._thread = ThreadPoolExecutor(1, "recorder")
        self._pending: deque[Future[None]] = deque()

    def observe(self, slots: Sequence[SlotViews]) -> None:
        """Records the full slots of a sequence, one per pool; sequences come in their order.

        Raises:
            UserError: these are the first since a resume, and environments are not where they were.
            OSError: If an earlier slot could not be written.
            TimeoutError: If the disk did not answer.
        """
        self._wait(_MAX_PENDING - 1)
        steps = copy_steps(slots)
        if self._writer is None:
            check_continues(self._path, self._num_kept or 0, steps)
            self._writer = self._open()
        self._pending.append(self._thread.submit(self._writer.append, steps))

    def commit(self) -> None:
        """Makes all steps so far permanent, so that a resumed run can continue here; raises as `observe` does."""
        if self._writer is not None:
            self._pending.append(self._thread.submit(self._writer.commit))
        self._wait(0)

    def close(self) -> None:
        """Commits, and closes the files."""
        if self._writer is not None:
            self._pending.append(self._thread.submit(self._writer.close))
        try:
            self._wait(0)
        finally:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def _wait(self, at_most: int) -> None:
        while len(self._pending) > at_most:
            wait_for_result(self._pending.popleft(), self._timeout_seconds)


def copy_steps(slots: Sequence[SlotViews]) -> Trajectory:
    """Returns a copy of the steps of slots, whose rows follow each other, without recurrent states. Frames are single."""
    return join_rows(
        [
            dataclasses.replace(as_trajectory(slot), observation=slot.observation, is_first=slot.is_first)  # pyright: ignore[reportArgumentType]
            for slot in slots
        ]
    )


def open_writer(path: Path, manifest: Manifest, step: int) -> DatasetWriter:
    """Returns a writer whose next step is that of the run; raises as `StepRecorder` does."""
    num_kept = num_kept_steps(path, manifest, step)
    if num_kept is not None:
        return DatasetWriter.reopen(path, num_kept)
    origin = {**manifest.origin, _FIRST_STEP: step}
    return DatasetWriter(path, Manifest(manifest.spec, manifest.num_rows, manifest.extras, (), manifest.env, origin))


def num_kept_steps(path: Path, manifest: Manifest, step: int) -> int | None:
    """Returns the steps of each row of a dataset after which the run continues; None where there is no dataset.

    Raises:
        UserError: If the dataset is of another run, or does not end at this step.
    """
    if not is_dataset(path):
        return None
    written = read_manifest(path)
    first = written.origin.get(_FIRST_STEP)
    if {**written.origin, _FIRST_STEP: None} != {**manifest.origin, _FIRST_STEP: None} or first is None:
        raise UserError(
            f"{path} is a dataset of {dict(written.origin)}: expected a new directory, or the dataset of this run, "
            f"{dict(manifest.origin)}; choose another --run.record"
        )
    if step - first not in (0, *[shard.end for shard in written.shards]):
        raise UserError(
            f"{path} has steps {first} to {first + written.num_steps} of each row, and the run continues at step {step}: expected "
            f"that they end there; choose another --run.record"
        )
    return step - first


def check_continues(path: Path, num_steps: int, steps: Trajectory) -> None:
    """Raises UserError where steps do not continue the episodes of the first `num_steps` of each row of a dataset."""
    recorded = open_dataset(path).steps
    frames = zip(leaves(recorded.observation), leaves(steps.observation), strict=True)
    continues = continuing_rows(steps.is_first[0], ((last[num_steps], first[0]) for last, first in frames))  # pyright: ignore[reportArgumentType]
    cut = recorded.valid[num_steps - 1] & ~continues
    if cut.any():
        raise UserError(
            f"{path}: expected environments that continue the recorded episodes, but {cut.sum()} of {len(cut)} could not return to "
            f"their state and are in others: choose another --run.record"
        )


def check_new_run(setup: TrainingSetup) -> None:
    """Raises UserError where a run without a checkpoint would replace the steps of an earlier run of its name.

    A run that was killed before its first checkpoint has a configuration, and records again from its first step.
    """
    path = Path(setup.config.record)
    if not setup.config.record or not is_dataset(path) or (setup.directory.path / CONFIG).exists():
        return
    written = read_manifest(path)
    if written.num_steps and written.origin.get("run") == setup.directory.path.name:
        raise UserError(
            f"{path} holds {written.num_steps} steps of each row of an earlier run of that name: expected a new directory; remove "
            f"it, or choose another --run.record"
        )


def make_recorder(setup: TrainingSetup, log: EpisodeLog) -> StepRecorder | None:
    """Returns the recorder of a run that continues where the log ends, or None if it records nothing.

    Raises:
        UserError: If `StepRecorder` raises it.
    """
    config = setup.config
    if not config.record:
        return None
    origin = {"agent": setup.agent.name, "run": setup.directory.path.name, "seed": config.seed}
    env = setup.identity["experiment"].get("env")
    manifest = Manifest(setup.spec, config.num_envs, dict(setup.agent.extras), env=env, origin=origin)
    return StepRecorder(Path(config.record), manifest, log.end_step, config.stall_timeout_seconds)


def check_recording(config: RunConfig, plan: Plan) -> None:
    """Raises UserError where no thread of the run has all steps in its host's memory."""
    if not config.record:
        return
    on_node = plan.replay is not None and bool(plan.replay.nodes)
    at_own_pace = plan.parameter_server is not None and config.learner.gradients == "asynchronous"
    if plan.is_offline or runs_on_device(plan) or on_node or at_own_pace or config.distributed.is_on:
        raise UserError(
            f"plan {plan.name}: run.record needs all steps in the memory of one learner process: use --plan "
            f"single_learner_fine without --distributed, or record the trained policy with jaxsrl record"
        )
