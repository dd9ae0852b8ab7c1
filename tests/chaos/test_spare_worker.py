"""The process that is ready to replace a worker: there from the first death on, replaceable itself, and harmless to the others."""

import dataclasses
import os
import time

import pytest

from tests.chaos.counting import PATIENT, begin, check, collect, kill, make_pool
from tests.chaos.test_leaks import SHAPE, kill_and_wait, kill_until, wait_for_workers, workers_of

NUM_WORKERS = SHAPE.num_workers


def test_spare_becomes_the_worker_after_the_next_death():
    with make_pool(SHAPE) as pool:
        begin(pool)
        collect(pool, 1)
        assert len(workers_of(pool)) == NUM_WORKERS
        kill_and_wait(pool, 0)
        spare = wait_for_workers(pool, NUM_WORKERS + 1) - set(pool._workers._pids)
        kill_until(pool, lambda: spare <= set(pool._workers._pids))
        wait_for_workers(pool, NUM_WORKERS + 1)
        check(collect(pool, 2))


@pytest.mark.slow
def test_killed_spare_has_no_effect():
    with make_pool(SHAPE) as pool:
        begin(pool)
        collect(pool, 1)
        kill_and_wait(pool, 0)
        (spare,) = wait_for_workers(pool, NUM_WORKERS + 1) - set(pool._workers._pids)
        os.kill(spare, 9)
        kill_and_wait(pool, 1)
        kill_and_wait(pool, 0)
        check(collect(pool, 2))


def test_without_a_spare_workers_are_replaced_all_the_same():
    options = dataclasses.replace(PATIENT, keep_spare=False)
    with make_pool(SHAPE, supervision=options) as pool:
        begin(pool)
        collect(pool, 1)
        kill_and_wait(pool, 0)
        time.sleep(0.4)
        assert len(workers_of(pool)) == NUM_WORKERS
        assert kill(pool, 1)
        check(collect(pool, 2))


EDITED = """
from tests.chaos.counting import Counting

class Edited(Counting):
    pass
"""


def test_workers_that_replace_others_run_the_code_of_the_first(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "edited_env.py").write_text(EDITED)
    import edited_env

    with make_pool(SHAPE, edited_env.Edited) as pool:
        begin(pool)
        collect(pool, 1)
        (tmp_path / "edited_env.py").write_text("def broken(:")
        kill_and_wait(pool, 0)
        (spare,) = wait_for_workers(pool, NUM_WORKERS + 1) - set(pool._workers._pids)
        kill_until(pool, lambda: spare in pool._workers._pids)
        check(collect(pool, 2))
