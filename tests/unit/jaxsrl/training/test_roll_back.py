"""Roll-backs of a run whose updates are not finite: which checkpoint they restore, what they remove, and where they end."""

from types import SimpleNamespace

import numpy as np
import pytest

from jaxsrl.checkpoints.store import CheckpointStore
from jaxsrl.learner.finite_updates import SKIPPED
from jaxsrl.learner.finite_watch import FiniteWatch, NotFiniteError
from jaxsrl.models.store import MODELS, ModelStore
from jaxsrl.training.callbacks import Callback
from jaxsrl.training.coordinator import Coordinator
from jaxsrl.training.run_checkpoints import RunCheckpoints
from tests.unit.jaxsrl.training.test_train import Counter, make_setup, train

LIMIT = 4


class Skipping(Counter):
    """A counter whose updates of some numbers are skipped; `restored` are the updates of the checkpoints it returned to."""

    def __init__(self, skipped, dump=None):
        super().__init__()
        self.skipped, self.restored = set(skipped), []
        self.watch = FiniteWatch(LIMIT, dump)

    def step(self):
        super().step()
        metrics = {SKIPPED: np.float32(self.num_updates in self.skipped)}
        self.too_many_nonfinite = self.watch.observe(metrics, {"reward": np.ones(2)}, wait=True)
        self.watch.count_in(self.stats)
        self.skipped_batch = self.watch.written
        return True

    def restore_learned(self, learned):
        self.restored.append(learned)


@pytest.fixture(autouse=True)
def fits(monkeypatch):
    """Every checkpoint fits the counter."""
    monkeypatch.setattr(
        "jaxsrl.training.run_checkpoints.restore_state", lambda agent, key, arrays, **options: int(arrays["n"])
    )
    monkeypatch.setattr("jaxsrl.training.run_checkpoints.RunCheckpoints._select", lambda self, arrays, metadata: arrays)


def run(path, counter, updates=24, **changes):
    options = {"learner_on_nonfinite": "roll_back", "learner_max_nonfinite_updates": LIMIT}
    return train(path, counter, **{**options, "total_env_steps": updates * 4, **changes})


def damage(checkpoint):
    (checkpoint / "MANIFEST.json").write_text("{")


def steps(path):
    return CheckpointStore(path / "checkpoints").steps()


def test_abandoned_checkpoints_are_removed(tmp_path):
    """Checkpoint 8 lies between skipped updates; update 11 is finite, and no checkpoint is saved before the next roll-back."""
    counter = Skipping([7, 8, 9, 10, 12, 13, 14, 15])
    run(tmp_path, counter, updates=17, checkpoint_interval_updates=4)
    assert counter.restored == [4, 4]
    assert steps(tmp_path) == [4, 16, 17]


def test_resume_does_not_return_to_an_abandoned_checkpoint(tmp_path):
    counter = Skipping([7, 8, 9, 10])
    counter._on_step = lambda number: (_ for _ in ()).throw(KeyboardInterrupt).send(None) if number == 11 else None
    with pytest.raises(KeyboardInterrupt):  # an error would save first
        run(tmp_path, counter)
    assert counter.restored == [4]
    resumed = Skipping([])
    resumed._on_step = lambda number: resumed.events.append(number)
    run(tmp_path, resumed, updates=6)
    assert resumed.events[2] == 4


def test_other_processes_remove_nothing(tmp_path):
    directory = SimpleNamespace(checkpoints=tmp_path, log=print, validate_presence=lambda: None)
    setup = make_setup(directory, learner_on_nonfinite="roll_back", learner_max_nonfinite_updates=LIMIT)
    counter, coordinator = Skipping([]), Coordinator()
    checkpoints = RunCheckpoints(setup, counter, coordinator)
    for counter.num_updates in (4, 8):
        checkpoints.save(counter)
    coordinator.is_main = False
    counter.num_updates, counter.stats.skipped_span, counter.skipped_batch = 10, 4, None
    checkpoints.roll_back(counter)
    assert (counter.restored, checkpoints.saved_update) == ([4], 4)
    assert CheckpointStore(tmp_path).steps() == [4, 8]


def test_roll_back_goes_further_back_without_a_finite_update(tmp_path):
    """Nothing is finite after update 8, whose checkpoint is whole but of parameters that have diverged."""
    counter = Skipping(range(9, 25))
    with pytest.raises(NotFiniteError, match="and no checkpoint from before them is left"):
        run(tmp_path, counter)
    assert counter.restored == [8, 4]
    assert counter.num_updates == 20


def test_copies_do_not_push_out_older_checkpoints(tmp_path):
    """Saves between a roll-back and the next finite update would hold what update 8 had learned."""
    counter = Skipping(range(9, 25))
    with pytest.raises(NotFiniteError, match="no checkpoint from before them is left"):
        run(tmp_path, counter, checkpoint_interval_updates=2, checkpoint_max_to_keep=3)
    assert counter.restored == [8, 6, 4]  # nor do those before the first roll-back


class Fails(Callback):
    """Fails after update 7."""

    def on_update(self, run):
        if run.num_updates == 7:
            raise OSError("out of luck")


def test_an_error_saves_no_copy_of_an_older_checkpoint(tmp_path):
    with pytest.raises(OSError, match="out of luck"):
        run(tmp_path, Skipping(range(5, 8)), callbacks=[Fails()], checkpoint_interval_updates=4)
    assert steps(tmp_path)[-1] == 4


def test_a_run_that_never_rolls_back_saves_skipped_updates(tmp_path):
    run(tmp_path, Skipping([5, 6, 7]), updates=7, checkpoint_interval_updates=1, learner_on_nonfinite="stop")
    assert steps(tmp_path) == [1, 2, 3, 4, 5, 6, 7]


def test_saves_go_on_after_a_finite_update(tmp_path):
    """Update 7 is finite, so the checkpoint of 8 has news; that of 10 would hold what 8 holds."""
    run(tmp_path, Skipping([5, 6, 8, 9, 10, 12]), updates=13, checkpoint_interval_updates=2)
    assert steps(tmp_path) == [2, 4, 8, 12, 13]


def test_models_of_abandoned_updates_are_removed(tmp_path):
    told = []

    class Noting(Callback):
        def on_roll_back(self, run, update):
            told.append((run.num_updates, update, [model.version for model in store.models()]))

    store = ModelStore(tmp_path / MODELS)
    for version in (2, 4, 6):
        store.save(version, {"n": np.array(version)}, {}, [f"step-{version * 4}"])
    run(tmp_path, Skipping([7, 8, 9, 10]), updates=11, callbacks=[Noting()])
    assert told == [(10, 4, [2, 4])]
    assert store.tags() == {"step-8": 2, "step-16": 4}
    assert "removes the models of abandoned updates: 6" in (tmp_path / "log.txt").read_text()


def test_frozen_models_do_not_end_the_run(tmp_path):
    store = ModelStore(tmp_path / MODELS)
    store.save(6, {"n": np.array(6)}, {})
    store.freeze()
    run(tmp_path, Skipping([7, 8, 9, 10]), updates=11)
    assert "the models of abandoned updates stay: the models in" in (tmp_path / "log.txt").read_text()


def test_a_full_disk_does_not_end_a_roll_back(tmp_path, monkeypatch):
    def full(store, last):
        raise OSError("no space left on device")

    monkeypatch.setattr(ModelStore, "abandon", full)
    run(tmp_path, Skipping([7, 8, 9, 10]), updates=11)
    assert "the models of abandoned updates stay: no space left" in (tmp_path / "log.txt").read_text()


def test_damaged_checkpoints_are_passed_over(tmp_path):
    counter = Skipping(range(9, 25))
    counter._on_step = lambda number: damage(tmp_path / "checkpoints" / "4") if number == 9 else None
    with pytest.raises(NotFiniteError, match="no checkpoint from before them is left"):
        run(tmp_path, counter)
    assert counter.restored == [8]


def test_error_does_not_advise_what_is_set(tmp_path):
    with pytest.raises(
        NotFiniteError, match="no checkpoint from before them is left: .*--checkpoint.max-to-keep 18"
    ) as raised:
        run(tmp_path / "set", Skipping(range(1, 9)))
    assert "--learner.on-nonfinite" not in str(raised.value)
    with pytest.raises(NotFiniteError, match="or --learner.on-nonfinite roll_back with --checkpoint.interval-updates"):
        run(tmp_path / "stop", Skipping(range(1, 9)), learner_on_nonfinite="stop")


def test_only_the_batch_of_this_process_is_mentioned(tmp_path):
    dump = tmp_path / "not_finite_batch.npz"
    with pytest.raises(NotFiniteError, match=f"; the batch is in not_finite_batch.npz of {tmp_path}"):
        run(tmp_path, Skipping(range(1, 9), dump))
    assert dump.exists()
    with pytest.raises(NotFiniteError) as raised:
        run(tmp_path, Skipping(range(1, 9)))
    assert "the batch" not in str(raised.value)


def test_newest_checkpoint_of_records_is_the_restored_one(tmp_path):
    run(tmp_path, Skipping([7, 8, 9, 10]), updates=11, metrics_interval_seconds=0.0)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert any('"update": 10' in line and '"checkpoint/update": 4.0' in line for line in lines), lines[-3:]
