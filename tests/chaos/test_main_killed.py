"""The main process or a group of processes is killed, whatever the workers are doing: within a second nothing is left."""

import ctypes
import os
import subprocess
import time

import pytest

from tests.chaos.counting import SHAPE, Counting
from tests.chaos.sessions import begin_session, end_session, members, seconds_until_gone
from tests.chaos.test_descendants import programs, wait_until_gone
from tests.shared_names import names_left

# A process that has everything imported, and forks a main process of a pool whenever it is asked to. A main process tells when its
# workers are in the state that is wanted; then it goes on until it is killed.
MAINS = """
import os, sys, time
from functools import partial
from tests.chaos.counting import SHAPE, Counting, act, begin, make_pool
from tests.chaos.test_descendants import Starts
from tests.chaos.test_main_killed import Hangs

def main(state):
    os.setsid()
    with make_pool(SHAPE, {"hung": Hangs, "programs": partial(Starts, os.getpid())}.get(state, Counting)) as pool:
        begin(pool)
        assert pool.wait_started(20.0)
        while state == "hung" and min(pool._counters.actions_posted(lane) for lane in range(pool.num_lanes)) < 3:
            act(pool)
        print(os.getpid(), flush=True)
        while state == "stepping":
            act(pool)
            if pool.acquire(0.0) is not None:
                pool.release(pool._next_lease - 1)
        time.sleep(600)

for line in sys.stdin:
    if not os.fork():
        main(line.strip())
    os.wait()
"""


class Hangs(Counting):
    """Hangs in C, with the interpreter's lock held, at the third step."""

    def act_up(self):
        if self.steps == 3:
            ctypes.PyDLL(None).sleep(600)


def kill_main(main):
    os.kill(main, 9)


def kill_all_groups(main):
    """Kills the groups of the main process and of the workers, which the fork server leads, at once."""
    (server,) = (pid for pid, parent in members(main).items() if parent == main)
    os.killpg(server, 9)
    os.killpg(main, 9)


def kill_mains(cases):
    """Kills main processes, each in a state and in a way; seconds until nothing was left of it."""
    names, seconds = names_left(), []
    server = begin_session(MAINS, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
    main = 0
    try:
        for state, kill in cases:
            server.stdin.write(f"{state}\n")
            main = int(server.stdout.readline())
            started = programs(main).keys()
            assert len(started) == (3 * SHAPE.num_rows if state == "programs" else 0)
            assert len(members(main).keys() - started) == 6, (
                "the main process, the fork server and two workers with their keepers"
            )
            began = time.monotonic()
            kill(main)
            seconds_until_gone(main, 60.0)
            wait_until_gone(started, main)
            seconds.append(time.monotonic() - began)
            assert names_left() <= names
        server.stdin.close()
        server.wait(60)
    finally:
        for pid in members(main).keys() | programs(main).keys():
            os.kill(pid, 9)
        end_session(server)
        server.stdout.close()
    return seconds


def test_nothing_is_left_of_a_main_process_that_was_killed():
    kill_mains([("stepping", kill_all_groups), ("hung", kill_main), ("programs", kill_all_groups)])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_main_processes_leave_nothing():
    ways = [kill_main, kill_all_groups]
    seconds = kill_mains([(state, way) for way in ways for state in ("idle", "stepping", "hung", "programs")] * 25)
    print(f"{len(seconds)} main processes killed; gone after at most {max(seconds) * 1e3:.0f} ms")
