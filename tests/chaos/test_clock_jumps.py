"""The wall clock is set forward and back by an hour while a pool works: nobody is taken for dead, and nothing waits for it."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# The wall clock of every process that has this loaded is off by the seconds in the file that JUMP names.
SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
static volatile long *offset;
__attribute__((constructor)) static void begin(void) {
    int file = open(getenv("JUMP"), O_RDONLY);
    offset = mmap(0, 8, PROT_READ, MAP_SHARED, file, 0);
}
int clock_gettime(clockid_t id, struct timespec *at) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int status = real(id, at);
    if (id == CLOCK_REALTIME) at->tv_sec += *offset;
    return status;
}
int gettimeofday(struct timeval *at, void *zone) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec; at->tv_usec = now.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
"""
STEP = """
import os, time
from tests.chaos.counting import PATIENT, SHAPE, begin, check, collect, make_pool
from tests.chaos.test_leaks import kill_and_wait
import dataclasses

def jump(seconds):
    before = time.time()
    with open(os.environ["JUMP"], "r+b") as file:
        file.write(seconds.to_bytes(8, "little", signed=True))
    return time.time() - before

options = dataclasses.replace(PATIENT, step_timeout_seconds=5.0, start_timeout_seconds=20.0)
with make_pool(SHAPE, supervision=options) as pool:
    begin(pool)
    slots, longest, jumps = collect(pool, 2), 0.0, []
    for offset in (3600, -3600, 0):
        jumps.append(round(jump(offset)))
        began = time.monotonic()
        slots += collect(pool, 3)
        longest = max(longest, time.monotonic() - began)
        assert pool.supervision.restarts == pool.supervision.hangs == 0, pool.supervision
        assert not pool.wait_started(0.0) or pool.acquire(0.05) is None
    check(slots)
    jump(-3600)
    kill_and_wait(pool, 0)
print(jumps, "longest", longest)
"""


@pytest.fixture
def shim(tmp_path):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler for a clock that jumps")
    (tmp_path / "shim.c").write_text(SHIM)
    built = [compiler, "-shared", "-fPIC", "-o", str(tmp_path / "shim.so"), str(tmp_path / "shim.c"), "-ldl"]
    subprocess.run(built, check=True, timeout=150)
    (tmp_path / "jump").write_bytes(bytes(8))
    return {"LD_PRELOAD": str(tmp_path / "shim.so"), "JUMP": str(tmp_path / "jump")}


@pytest.mark.slow
def test_pool_ignores_wall_clock_jumps(shim):
    environment = {**os.environ, **shim, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        [sys.executable, "-c", STEP], capture_output=True, text=True, env=environment, timeout=150, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("[3600, -7200, 3600] longest "), "the clock must have jumped"
    assert float(result.stdout.split()[-1]) < 5.0


def test_no_wait_of_ours_looks_at_the_wall_clock():
    # What is written down for people may: dates in logs. Waits and rates run on the monotonic clock.
    of_the_wall_clock = re.compile(r"time\.time\(|time\.time_ns|datetime\.now|sem_timedwait|import time(?!\n)")
    found = []
    for package in ("envpool_bridge", "agents"):
        for path in (ROOT / package).rglob("*.py"):
            lines = path.read_text().splitlines(keepends=True)
            found += [f"{path.name}: {line}" for line in lines if of_the_wall_clock.search(line)]
    assert found == []
