"""What environments print arrives when the output is a pipe, which Python writes in large portions: once, and to the end."""

import os
import subprocess
import sys

SCRIPT = """
import sys
import gymnasium, numpy as np
from gymnasium import spaces
from envpool_bridge.errors import EnvPoolError
from envpool_bridge.vector_env import PoolVectorEnv

class Prints(gymnasium.Env):
    observation_space, action_space = spaces.Box(-9.0, 9.0, (1,)), spaces.Discrete(3)
    closes = False
    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}
    def step(self, action):
        print("stepped")
        print("warned", file=sys.stderr)
        return np.full(1, np.nan if action == 2 else 0, np.float32), 0.0, False, False, {}
    def close(self):
        if self.closes:
            print("closed")
            raise OSError("cannot close")

envs = PoolVectorEnv(Prints, 2, num_workers=1, strict=True)
envs.reset()
envs.set_attr("closes", True)
try:
    envs.step(np.full(2, int(sys.argv[1])))
except EnvPoolError as error:
    print(type(error).__name__)
envs.close()
"""


def run(script, *arguments):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env=environment,
    )


def test_output_of_workers_that_are_stopped_arrives():
    ended = run(SCRIPT, "0")
    assert sorted(ended.stdout.split()) == ["closed", "closed", "stepped", "stepped"]
    assert ended.stderr.count("warned") == 2
    assert ended.stderr.count("OSError: cannot close") == 1, (
        "the first error of the worker, as Gymnasium's workers show it"
    )


def test_output_of_workers_that_fail_arrives():
    ended = run(SCRIPT, "2")
    assert ended.stdout.split().count("stepped") == 2
    assert "BadEnvOutputError" in ended.stdout


FORKS = """
import os, sys
print("imported")
from envpool_bridge.supervisor.forkserver import _Server
class Server(_Server):
    def __init__(self):
        self._connection, self._spare, self._keepers, self._ended = open(os.devnull), None, {}, {}
server = Server()
assert server._wait(server._fork(lambda: print("forked")), 60.0) == 0
"""


def test_what_was_printed_before_a_fork_is_written_once():
    assert run(FORKS).stdout.split() == ["imported", "forked"]
