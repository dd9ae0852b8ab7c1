"""Checkpoints of a run: restored as far as they fit, saved, and returned to when learning diverges."""

import json
import shutil
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from agents.api import ReplayAgent
from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.errors import UserError
from jaxsrl.checkpoints.names import LEARNER, REPLAY
from jaxsrl.checkpoints.partial_restore import format_report
from jaxsrl.checkpoints.schema import Form, num_bytes, validate_match
from jaxsrl.checkpoints.store import Arrays, CheckpointSaveError, CheckpointStore, Restored
from jaxsrl.collect.slot_layout import trajectory_shapes
from jaxsrl.config.serialization import with_new_options
from jaxsrl.learner.finite_watch import NotFiniteError
from jaxsrl.learner.loop import AnyLearner
from jaxsrl.models.store import MODELS, ModelStore
from jaxsrl.terminal.format import format_bytes
from jaxsrl.training.coordinator import Coordinator
from jaxsrl.training.dataset_replay import own_replay
from jaxsrl.training.run_state import (
    holds_episodes,
    holds_replay,
    init_state,
    learner_forms,
    learner_that_fits,
    replay_forms,
    restore_state,
    state_to_arrays,
    validate_learner,
    without_replay,
    without_rows,
)
from jaxsrl.training.setup import TrainingSetup
from jaxsrl.training.step_recorder import check_new_run
from jaxsrl.training.trainable import Trainable
from jaxsrl.training.warm_start import warm_start

_NUM_UPDATES = f"{LEARNER}.num_updates"
_IS_WARM_START = "is_warm_start"  # in metadata: the arrays are of another run


class RunCheckpoints:
    """Reads and writes the checkpoints of one run. Thread-safety: one thread.

    Attributes:
        saved_update: update of the newest checkpoint of this run; None without any.
    """

    def __init__(self, setup: TrainingSetup, trainable: Trainable, coordinator: Coordinator) -> None:
        self.saved_update: int | None = None
        self._rolled_back_at = self._rolled_back_to = 0  # updates; 0 before the first roll-back
        self._saved_finite = 0  # finite updates before the newest save or roll-back
        self._setup, self._trainable, self._coordinator = setup, trainable, coordinator
        self._store = CheckpointStore(setup.directory.checkpoints, setup.config.checkpoint.max_to_keep)

    def restore(self) -> Arrays | None:
        """Returns the arrays of the newest checkpoint that this run can use; None where the run starts from scratch.

        Raises:
            UserError: If no checkpoint is intact, the newest is of another network or algorithm, or a new run would replace the
                recorded steps of an earlier one.
        """
        setup, config = self._setup, self._setup.config
        restored = self._coordinator.restore(lambda: self._restore_newest() or self._warm_start())
        if restored is None or not restored[0]:
            check_new_run(setup)
        if restored is None:
            setup.directory.log(f"starts: {config.num_updates} updates")
            return None
        step, arrays, metadata, problems = restored
        if metadata.get(_IS_WARM_START):
            return arrays
        for problem in problems:
            setup.log(f"damaged checkpoint skipped: {problem}")
        setup.log(f"resumes {setup.directory.path} at update {step} of {config.num_updates}")
        self.saved_update = step
        return self._coordinator.split_rows(self._select(arrays, metadata))

    def _restore_newest(self) -> Restored | None:
        """Returns the newest checkpoint of this run, in updates of its size; main process only.

        Raises:
            UserError: updates had another size, and the run has models, which are numbered by them.
        """
        setup, config, path = self._setup, self._setup.config, self._setup.directory.path
        validate = None if config.checkpoint.partial_restore else self._validate_fit
        restored = self._store.restore_newest(validate=validate)
        size, unit = config.env_steps_per_update, config.step_unit
        if restored is None or restored[2]["env_steps"] == restored[0] * size:
            return restored
        if ModelStore(path / MODELS).models():
            raise UserError(
                f"the models of {path} are numbered by updates of another size than {size} {unit}: start another run with what it "
                f"learned (--run.init-from {path} --run.name NAME)"
            )
        _, arrays, metadata, problems = restored
        before = metadata["env_steps"]
        update = max(1, round(before / size))
        setup.log(f"an update takes {size} {unit} now: {before} count as {update} updates, {update * size} {unit}")
        arrays = {**arrays, _NUM_UPDATES: np.asarray(update, arrays[_NUM_UPDATES].dtype)}
        metadata = {**metadata, "env_steps": update * size}
        self._store.replace_all(update, arrays, metadata)
        return update, arrays, metadata, problems

    def save(self, learner: AnyLearner, must: bool = False) -> bool:
        """Writes a checkpoint; all learner processes call it together, and process 0 writes.

        A checkpoint that cannot be written is logged and counted, and training continues with the older ones.

        Args:
            learner: Learner of the run.
            must: raise instead.

        Returns:
            Whether the checkpoint was written.

        Raises:
            CheckpointSaveError: If it could not be written, and it must.
            UserError: If the run directory was removed or renamed.
        """
        setup, update = self._setup, learner.num_updates
        # Also where the main process then fails to write: all processes decide alike on the next save.
        self._saved_finite = learner.stats.finite
        arrays = self._coordinator.merge_rows(self._trainable.to_arrays())
        metadata = {**setup.identity, "env_steps": update * setup.config.env_steps_per_update}
        if self._coordinator.is_main:
            setup.directory.validate_presence()
            try:
                self._store.save(update, arrays, metadata)
            except CheckpointSaveError as error:
                if must:
                    raise
                learner.stats.unsaved += 1
                setup.log(f"{error}; training continues")
                return False
        self.saved_update = update
        setup.directory.log(f"checkpoint at update {update}")
        return True

    def roll_back(self, learner: AnyLearner) -> None:
        """Returns the learner to the newest checkpoint from before too many updates that were not finite; removes later ones.

        All learner processes call it together. If no update was finite since the last call, it goes further back.

        Raises:
            NotFiniteError: If the run does not roll back, or there is no such checkpoint.
        """
        setup, config = self._setup, self._setup.config.learner
        problem = (
            f"{config.max_nonfinite_updates} consecutive updates produced NaN or infinity and were skipped (last: "
            f"{learner.num_updates})"
        )
        path = learner.skipped_batch
        batch = "" if path is None else f"; the batch is in {path.name} of {path.parent}"
        if config.on_nonfinite != "roll_back":
            raise NotFiniteError(
                f"{problem}{batch}: look for rewards or observations that are not finite, use a smaller learning rate, or "
                f"--learner.on-nonfinite roll_back with --checkpoint.interval-updates"
            )
        # A checkpoint from between the skipped updates holds what the learner has now.
        last = learner.num_updates - learner.stats.skipped_span
        if last < self._rolled_back_at:  # what the last one restored led to no finite update
            last = min(last, self._rolled_back_to - 1)
        restored = self._coordinator.restore(partial(self._store.restore_newest, last=last))
        if restored is None:
            raise NotFiniteError(
                f"{problem}, and no checkpoint from before them is left{batch}: look for rewards or observations that are not "
                f"finite, use a smaller learning rate, or keep more checkpoints (--checkpoint.max-to-keep "
                f"{2 * setup.config.checkpoint.max_to_keep})"
            )
        step, arrays, _, damaged = restored
        for each in damaged:
            setup.log(f"damaged checkpoint skipped: {each}")
        setup.log(f"{problem}{batch}: resumes from what the checkpoint of update {step} had learned")
        learner.restore_learned(restore_state(setup.agent, setup.keys.init, arrays, with_replay=False))
        self._rolled_back_at, self._rolled_back_to = learner.num_updates, step
        self.saved_update, self._saved_finite = step, learner.stats.finite
        if self._coordinator.is_main:
            self._remove_after(step)

    def has_news(self, learner: AnyLearner) -> bool:
        """Returns False while a run that rolls back skips updates, and none was finite since the newest save or roll-back.

        Such a checkpoint would hold what an older one holds, and push out those to which the run may have to return.
        """
        config, stats = self._setup.config.learner, learner.stats
        rolls_back = config.on_nonfinite == "roll_back" and config.max_nonfinite_updates
        return not rolls_back or not stats.skipped_span or stats.finite > self._saved_finite

    def _remove_after(self, step: int) -> None:
        """Removes what a roll-back abandons, so that no later roll-back or resume returns to it, and no query chooses it."""
        setup = self._setup
        try:  # before the checkpoints: a process that is killed between the two rolls back again
            models = ModelStore(setup.directory.path / MODELS).abandon(step)
        except (UserError, OSError) as error:
            setup.log(f"the models of abandoned updates stay: {error}")
        else:
            if models:
                setup.log(f"removes the models of abandoned updates: {', '.join(map(str, models))}")
        self._store.remove(*[each for each in self._store.steps() if each > step])

    def _warm_start(self) -> Restored | None:
        """Returns the learner state of a new run that starts with arrays of another one; None if it does not."""
        setup = self._setup
        if not setup.config.init_from:
            return None
        fresh = state_to_arrays(init_state(setup.agent, setup.keys.init), with_replay=False)
        policies = setup.identity["experiment"].get("policies") or {}
        names = set(json.loads(policies.get("mapping", "{}")).values())
        has_members = bool(policies.get("self_play", {}).get("members"))
        frozen = json.loads(policies.get("frozen", "{}")).keys()
        arrays, report = warm_start(setup.config, fresh, names, has_members, frozen)
        setup.log(report)
        return 0, arrays, {**setup.identity, _IS_WARM_START: True}, []

    def _select(self, arrays: Arrays, metadata: Mapping[str, Any]) -> Arrays:
        """Returns the arrays of a checkpoint from which this run continues; logs what is missing."""
        setup = self._setup
        if setup.plan.replay is not None and not holds_replay(arrays):
            setup.log(
                "the checkpoint holds no experience (only the newest one has it, without --checkpoint.no-include-replay): replay "
                "starts empty"
            )
        if setup.config.checkpoint.partial_restore:
            arrays = self._select_fitting(arrays)
        has_same_env, has_same_seed = self._has_same_environments(metadata)
        if not has_same_env and holds_replay(arrays):
            setup.log("the checkpoint's experience is of another environment: replay starts empty")
            arrays = without_replay(arrays)
        if has_same_env and has_same_seed and self._trainable.rows_fit(arrays):
            if setup.config.checkpoint.replay_episodes or not holds_episodes(arrays):
                return arrays
            setup.log("environments start new episodes, so the run differs from an uninterrupted one")
        elif metadata.get("env_steps", 1):  # at 0 there are no episodes yet
            setup.log(
                "environments start new episodes: the checkpoint has no episodes that this plan can continue (another "
                "environment, number of rows or kind of plan)"
            )
        return without_rows(arrays)

    def _select_fitting(self, arrays: Arrays) -> Arrays:
        setup = self._setup
        fitting, left_out = learner_that_fits(arrays, init_state(setup.agent, setup.keys.init))
        if left_out:
            setup.log(format_report(fitting, left_out))
        elif holds_replay(arrays):
            forms = {name: (x.shape, x.dtype) for name, x in arrays.items() if name.startswith(REPLAY)}
            if forms != _replay_forms(self._setup):
                setup.log("partial restore: the checkpoint's experience does not fit: replay starts empty")
                return without_replay(arrays)
        return fitting

    def _validate_fit(self, forms: Mapping[str, Form]) -> None:
        try:
            validate_learner(self._setup.agent, self._setup.keys.init, forms)
            if holds_replay(forms):
                validate_match(_replay_forms(self._setup), forms, REPLAY)
        except UserError as error:
            raise UserError(
                f"{error}\nchoose another --run.name, or restore the arrays that fit (--checkpoint.partial-restore)"
            ) from error

    def _has_same_environments(self, metadata: Mapping[str, Any]) -> tuple[bool, bool]:
        """Returns whether the environment is the checkpoint's, and whether the seed is."""
        saved, own = metadata.get("experiment", {}), self._setup.identity["experiment"]
        seeds = [experiment.get("run", {}).get("seed") for experiment in (saved, own)]
        # Only an EnvConfig has options to complete: functions and other sources are as they were saved, or differ.
        environments = saved.get("env"), with_new_options(saved.get("env"), EnvConfig())
        return own.get("env") in environments, seeds[0] == seeds[1]


def report_disk(setup: TrainingSetup) -> None:
    """Writes to the log how much disk the checkpoints take when replay is full, or warns where that is not free."""
    config, path = setup.config.checkpoint, setup.directory.path
    if not config.interval_updates:
        return
    learned = sum(map(num_bytes, learner_forms(setup.agent, setup.keys.init).values()))
    replay = sum(map(num_bytes, _replay_forms(setup).values())) if config.include_replay else 0
    # While one is written, the one before it still has its experience.
    needed = (config.max_to_keep + config.models_to_keep + 1) * learned + 2 * replay
    used = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    free = shutil.disk_usage(path).free + used
    line = f"checkpoints take up to {format_bytes(needed)} of disk, {format_bytes(free)} are free"
    if needed <= free:
        setup.directory.log(line)
        return
    remedy = " or save without experience (--checkpoint.no-include-replay)" if replay else ""
    setup.log(f"warning: {line}: use a --run.directory on another disk{remedy}")


def _replay_forms(setup: TrainingSetup) -> dict[str, Form]:
    shapes = trajectory_shapes(setup.agent, setup.spec, setup.config.num_envs, setup.config.rollout_length)
    agent = setup.agent
    if isinstance(agent, ReplayAgent):
        agent = agent._replace(data=own_replay(agent.data, setup.config.dataset))
    return replay_forms(agent, setup.keys.init, shapes)
