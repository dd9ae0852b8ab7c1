"""Model stores behind an engine whose actors are threads of this process."""

import asyncio
import inspect
import time
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pytest

from envpool_bridge.errors import UserError
from jaxsrl.checkpoints.manifest import MANIFEST, CorruptCheckpointError
from jaxsrl.cluster.models import ModelStoreHost, ModelStoreLostError, RemoteModelStore
from jaxsrl.models.store import ModelStore
from tests.support.thread_engine import ThreadEngine


class ThreadModels:
    def __init__(self, directory):
        self.host, self.node, self.gone, self.silent = ModelStoreHost(directory), "node1", False, False
        self.threads, self.longest_wait = ThreadPoolExecutor(2), 0.0

    def call(self, group, method, name, arguments, options):
        if name == "wait_newer":
            self.longest_wait = max(self.longest_wait, arguments[1])
        future = Future() if self.silent else self.threads.submit(self.answer, method, name, arguments, options)
        future.host = self
        return future

    def answer(self, method, *arguments):
        try:
            return asyncio.run(getattr(self.host, method)(*arguments))
        except Exception as error:  # an engine passes on few errors as they are
            raise RuntimeError(f"an actor failed: {error!r}") from error

    def kill(self):
        self.gone = True


@pytest.fixture
def models(tmp_path):
    made = ThreadModels(tmp_path / "models")
    yield made
    made.threads.shutdown()


@pytest.fixture
def store(models):
    store = RemoteModelStore(ThreadEngine({}), models, "run", timeout_seconds=30.0)
    for version in (1, 2, 3):
        store.save(version, {"learner.x": np.full(3, version)}, {"env_steps": 10 * version})
    return store


def test_remote_store_has_the_methods_of_the_store():
    def signatures(kind):
        return {
            name: list(inspect.signature(method).parameters.values())
            for name, method in vars(kind).items()
            if inspect.isfunction(method) and not name.startswith("_")
        }

    assert signatures(RemoteModelStore) == signatures(ModelStore)


def test_remote_store_gives_the_results_of_the_store(store, tmp_path):
    files = ModelStore(tmp_path / "models")
    assert store.save(4, {"learner.x": np.arange(3)}, {"env_steps": 40}, ("four",), **{"return": 7.0}) == (
        files.directory / "4"
    )
    assert store.tag("best", "2") == files.find("2")
    store.annotate(2, **{"return": 250.0, "method": "greedy"})
    assert store.tags() == files.tags() == {"best": 2, "four": 4}
    assert store.noted("return") == {2, 4}
    assert store.models() == files.models()
    assert [store.find(query).version for query in ("newest", "best", "return>200", "env_steps<20")] == [4, 2, 2, 1]
    assert store.find("best").metadata["method"] == "greedy"
    model, arrays = store.load("best")
    assert model == files.find("best")
    np.testing.assert_array_equal(arrays["learner.x"], np.full(3, 2))
    assert store.clone(tmp_path / "copy", "best") == tmp_path / "copy"
    assert ModelStore(tmp_path / "copy").tags() == {"best": 2}
    store.untag("four")
    assert store.collect_garbage(keep=1) == [1, 3]
    assert store.abandon(2) == [4]
    assert store.tags() == {"best": 2}
    store.freeze()
    with pytest.raises(UserError, match="are frozen"):
        store.tag("a", "2")
    store.freeze(False)
    store.tag("a", "2")


def test_remote_store_raises_the_errors_of_the_store(store, tmp_path):
    with pytest.raises(UserError, match=r"no model 'worst' .* its tags are none, its versions 1, 2, 3"):
        store.find("worst")
    (tmp_path / "models" / "3" / MANIFEST).write_text("{")
    with pytest.raises(CorruptCheckpointError, match="cannot be read"):
        store.load("3")


def test_remote_wait_returns_a_newer_version_or_none(store, models, monkeypatch):
    monkeypatch.setattr("jaxsrl.cluster.models._WAIT_SECONDS", 0.02)
    assert store.wait_newer(2, 0.0).version == 3
    begin = time.monotonic()
    assert store.wait_newer(3, 0.1) is None
    assert time.monotonic() - begin >= 0.1
    assert models.longest_wait == 0.02  # a call ends soon, even if its client has died
    waiting = models.threads.submit(store.wait_newer, 3, 30.0)
    ModelStore(models.host._store.directory).save(4, {"learner.x": np.zeros(1)}, {})
    assert waiting.result(30.0).version == 4


def test_silent_remote_store_is_an_error_at_its_deadline(store, models):
    models.silent = True
    store = RemoteModelStore(ThreadEngine({}), models, "run", timeout_seconds=0.05)
    with pytest.raises(ModelStoreLostError, match=r"'run' is lost \(tags: no answer within 0.05 s\).*--serve run"):
        store.tags()
    with pytest.raises(ModelStoreLostError, match=r"wait_newer: no answer within 0.15 s"):
        store.wait_newer(3, 0.1)


def test_dead_remote_store_is_an_error_that_helps(store, models):
    models.kill()
    with pytest.raises(ModelStoreLostError, match=r"it was killed by the test.*serve its directory again"):
        store.save(9, {"learner.x": np.zeros(1)}, {})
