"""Model stores: tags, queries, collection, clones, and processes that follow or are killed."""

import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from envpool_bridge.errors import UserError
from jaxsrl.checkpoints.manifest import MANIFEST, CorruptCheckpointError
from jaxsrl.checkpoints.store import load_checkpoint
from jaxsrl.models.store import DAMAGE, ModelStore
from jaxsrl.runs.read_checkpoint import read_saved_run, resolve_model


def arrays_of(version):
    return {"learner.params": np.full((3, 50), version, np.float32), "learner.num_updates": np.array(version)}


def save(store, *versions, tags=(), **notes):
    for version in versions:
        store.save(version, arrays_of(version), {"env_steps": 10 * version}, tags, **notes)


@pytest.fixture
def store(tmp_path):
    store = ModelStore(tmp_path / "run" / "models")
    save(store, 1, 2, 3)
    return store


def test_versions_are_found_by_number_tag_and_condition(store):
    store.tag("best", "2")
    store.annotate(1, **{"return": 300.0})
    store.annotate(2, **{"return": 250.0})
    assert [(model.version, model.env_steps, model.tags) for model in store.models()] == [
        (1, 10, ()),
        (2, 20, ("best",)),
        (3, 30, ()),
    ]
    found = {
        query: store.find(query).version
        for query in ("3", "best", "newest", "return>200", "return>=300", "env_steps<30")
    }
    assert found == {"3": 3, "best": 2, "newest": 3, "return>200": 2, "return>=300": 1, "env_steps<30": 2}
    model, arrays = store.load("best")
    assert model.metadata["return"] == 250.0
    np.testing.assert_array_equal(arrays["learner.params"], arrays_of(2)["learner.params"])


def test_a_damaged_version_hides_no_other(store):
    store.tag("best", "2")
    store.annotate(1, **{"return": 300.0})
    (store.directory / "3" / MANIFEST).write_text("{")
    assert [(model.version, DAMAGE in model.metadata) for model in store.models()] == [
        (1, False),
        (2, False),
        (3, True),
    ]
    assert store.find("return>200").version == 1
    assert store.load("best")[0].version == 2
    with pytest.raises(CorruptCheckpointError, match="cannot be read"):
        store.load("3")


@pytest.mark.parametrize("query", ["4", "worst", "return>200", "return~3", ""])
def test_unknown_models_are_errors_that_list_the_tags(store, query):
    store.tag("mine", "1")
    with pytest.raises(UserError, match="its tags are mine, its versions 1, 2, 3"):
        store.find(query)


def test_conditions_take_the_usual_forms_of_numbers(store):
    store.annotate(1, **{"return": 300.0})
    store.annotate(2, **{"return": -0.5})
    cases = {"return>2e+2": 1, "return>1E2": 1, "return<.5": 2, "return<=-5e-1": 2, "return>=300.": 1}
    assert {query: store.find(query).version for query in cases} == cases
    for query in ("return>1.2.3", "return>.", "return>1e"):
        with pytest.raises(UserError, match="no model"):
            store.find(query)


def test_empty_store_says_how_models_are_saved(tmp_path):
    with pytest.raises(UserError, match=r"holds none; --eval.every and --checkpoint.keep-every save them"):
        ModelStore(tmp_path).find("newest")


@pytest.mark.parametrize("name", ["3", "newest", "a/b", "", "-x"])
def test_tags_are_names(store, name):
    with pytest.raises(UserError, match="a tag is a letter followed by"):
        store.tag(name, "1")


def test_collection_keeps_what_is_tagged_and_the_newest(store):
    save(store, 4, 5, 6)
    store.tag("a", "1")
    store.tag("b", "1")
    assert store.collect_garbage(keep=2) == [2, 3, 4]
    store.untag("a")
    assert store.collect_garbage(keep=0) == [5, 6]
    assert [model.version for model in store.models()] == [1]
    with pytest.raises(UserError, match="no tag 'a'"):
        store.untag("a")


def test_collection_keeps_all_if_there_are_fewer(store):
    assert store.collect_garbage(keep=4) == []
    assert [model.version for model in store.models()] == [1, 2, 3]


def test_collection_rejects_a_negative_number(store):
    with pytest.raises(UserError, match="models to keep from 0: got -1"):
        store.collect_garbage(keep=-1)
    assert [model.version for model in store.models()] == [1, 2, 3]


def test_load_repeats_a_query_whose_version_was_deleted(store, monkeypatch):
    def delete_then_load(path):
        monkeypatch.undo()
        store.collect_garbage(keep=0)
        save(store, 7)
        return load_checkpoint(path)

    monkeypatch.setattr("jaxsrl.models.store.load_checkpoint", delete_then_load)
    model, arrays = store.load("newest")
    assert (model.version, int(arrays["learner.num_updates"])) == (7, 7)


def test_frozen_stores_reject_changes(store):
    store.freeze()
    for change in (lambda: store.tag("a", "1"), lambda: save(store, 4), lambda: store.collect_garbage(0)):
        with pytest.raises(UserError, match="are frozen"):
            change()
    assert store.find("newest").version == 3
    store.freeze(False)
    save(store, 4)


def test_clones_hold_versions_tags_and_notes(store, tmp_path):
    store.tag("best", "2")
    store.annotate(2, **{"return": 5.0})
    clone = store.clone(tmp_path / "copy", "best")
    assert [(model.version, model.tags, model.metadata["return"]) for model in clone.models()] == [(2, ("best",), 5.0)]
    assert [model.version for model in store.clone(tmp_path / "all").models()] == [1, 2, 3]
    with pytest.raises(UserError, match="it exists"):
        store.clone(tmp_path / "all")


def test_a_store_without_versions_cannot_be_cloned(tmp_path):
    with pytest.raises(UserError, match=r"holds no models; --eval.every and --checkpoint.keep-every save them"):
        ModelStore(tmp_path / "run" / "models").clone(tmp_path / "copy")
    assert not list(tmp_path.iterdir())


def test_runs_are_read_by_tag(store, tmp_path):
    store.tag("best", "2")
    run = tmp_path / "run"
    assert resolve_model(run) == run
    assert int(read_saved_run(tmp_path / "run@best").arrays["learner.num_updates"]) == 2
    with pytest.raises(UserError, match="no run directory"):
        resolve_model(tmp_path / "other@best")


def start(function, directory, number):
    """Starts a process that calls a function of this file; a fork is forbidden by the library that writes checkpoints."""
    program = f"from {__name__} import *; {function}(Path({str(directory)!r}), {number})"
    return subprocess.Popen([sys.executable, "-c", program], cwd=Path(__file__).parents[4])


def publish(directory, count):
    store = ModelStore(directory)
    for version in range(1, count + 1):
        save(store, version)
        store.collect_garbage(keep=2)


@pytest.mark.parametrize("count", [20, pytest.param(1000, marks=pytest.mark.slow)])
def test_another_process_follows_the_newest_version(tmp_path, count):
    publisher = start("publish", tmp_path, count)
    follower, version, read = ModelStore(tmp_path), 0, 0
    try:
        while version < count:
            model = follower.wait_newer(version, timeout_seconds=120.0)
            assert model is not None
            assert model.version > version
            version = model.version
            try:
                _, arrays = follower.load(str(version))
            except UserError:  # collected meanwhile, as a newer one proves
                assert follower.wait_newer(version, 60.0) is not None
                continue
            np.testing.assert_array_equal(arrays["learner.params"], arrays_of(version)["learner.params"])
            read += 1
    finally:
        publisher.kill()
        publisher.wait()
    assert read > count // 100
    assert follower.wait_newer(count, 0.0) is None


def churn(directory, first):
    store = ModelStore(directory)
    for version in range(first, first + 100_000):
        save(store, version, tags=["last"])
        if version % 3 == 0:
            store.tag(f"kept-{version}", str(version))
        if version % 9 == 0:
            store.untag(f"kept-{version}")
        store.collect_garbage(keep=1)


@pytest.mark.parametrize("kills", [3, pytest.param(200, marks=pytest.mark.slow)])
def test_kills_lose_no_tagged_version(tmp_path, kills):
    rng, store = random.Random(0), ModelStore(tmp_path)
    save(store, 1, tags=["last", "first"])
    for _ in range(kills):
        before = store.tags()
        process = start("churn", tmp_path, before["last"] + 1)
        assert store.wait_newer(before["last"], timeout_seconds=60.0) is not None
        time.sleep(rng.uniform(0.0, 0.4))
        process.kill()
        process.wait()
        after = store.tags()
        for tag, version in before.items():
            assert tag == "last" or tag in after or version % 9 == 0
        for tag in after:
            model, arrays = store.load(tag)
            assert int(arrays["learner.num_updates"]) == model.version


def test_abandoned_versions_are_neither_listed_nor_chosen(store):
    """Learning returned to update 2; somebody has tagged version 5."""
    save(store, 4, tags=("step-40", "pending-4", "best"), **{"return": 300.0})
    save(store, 5, tags=("step-50", "mine"), **{"return": 400.0})
    store.annotate(2, **{"return": 250.0})
    assert store.abandon(2) == [3, 4]
    assert [(model.version, model.tags) for model in store.models()] == [(1, ()), (2, ()), (5, ("mine",))]
    assert store.find("return>200").version == 2
    assert store.noted("return") == {2}
    with pytest.raises(UserError, match="no model 'best'"):
        store.find("best")
    save(store, 4, tags=("step-40",))
    assert store.find("step-40").version == 4


def test_a_process_killed_while_it_abandons_leaves_no_tag_alone(store, monkeypatch):
    save(store, 4, tags=("best",), **{"return": 300.0})

    def killed(*versions):
        raise OSError("no space left")

    monkeypatch.setattr(store, "remove", killed)
    with pytest.raises(OSError, match="no space left"):
        store.abandon(2)
    assert (store.tags(), store.noted("return")) == ({}, set())
    monkeypatch.undo()
    assert store.abandon(2) == [3, 4]


def test_a_run_without_models_abandons_none_and_makes_no_store(tmp_path):
    assert ModelStore(tmp_path / "models").abandon(0) == []
    assert not (tmp_path / "models").exists()
