"""Memory of a process and what it started."""

import os
import subprocess
import sys

from jaxsrl.bench.one_run import memory_of_tree

HOLDS = """
import subprocess, sys
held = bytearray(b"x") * (int(sys.argv[1]) << 20)
child = None
if len(sys.argv) > 2:
    child = subprocess.Popen([sys.executable, "-c", sys.argv[2], sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    child.stdout.readline()
print("ready", flush=True)
sys.stdin.readline()
if child is not None:
    child.communicate(b"end")
"""


def held(*arguments: str) -> int:
    command = [sys.executable, "-c", HOLDS, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        memory = memory_of_tree(process.pid)
        process.communicate("end\n")
    return memory


def test_memory_of_a_process_is_what_it_holds():
    assert 64 << 20 < held("64") < 100 << 20


def test_what_its_children_hold_is_counted_too():
    assert 128 << 20 < held("64", HOLDS) < 180 << 20


def test_a_process_that_is_gone_holds_nothing():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert memory_of_tree(process.pid) == 0
    assert memory_of_tree(os.getpid()) > 0
