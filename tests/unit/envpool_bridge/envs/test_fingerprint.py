"""Fingerprints of user code, against programs whose texts differ in one place."""

import collections
import os
import subprocess
import sys
from functools import partial

import numpy as np
import pytest

from envpool_bridge.envs.fingerprint import fingerprint

PROGRAM = """
import numpy as np
from functools import partial
GOAL = 3.0
class Base:
    bonus = 0.5
class Env(Base):
    def step(self, action):
        return helper(action) + max(x for x in {1, 2, GOAL})
def helper(action):
    return action * 2.0
def make(size=4):
    return Env()
def makes(level):
    return lambda: (make(), level)
root = makes(1)
unused = 1
"""
CHANGES = {
    "GOAL = 3.0": ("GOAL = 4.0", {"root", "__main__:Env.step"}),
    "bonus = 0.5": ("bonus = 0.6", {"__main__:Base"}),
    "* 2.0": ("* 2.5", {"__main__:helper"}),
    "size=4": ("size=5", {"__main__:make"}),
    "makes(1)": ("makes(2)", {"__main__:makes.<locals>.<lambda>"}),
    "unused = 1": ("unused = 2  # another comment", set()),
}


def hashes_of(text):
    program = {"__name__": "__main__"}
    exec(compile(text, "program", "exec"), program)
    return fingerprint({"root": program["root"]})


def changed(old, new):
    return {name for name in old | new if old.get(name) != new.get(name)}


@pytest.mark.parametrize("old", CHANGES)
def test_each_change_of_a_program_is_named(monkeypatch, old):
    monkeypatch.setattr(sys.modules["__main__"], "__file__", None, raising=False)
    new, names = CHANGES[old]
    difference = changed(hashes_of(PROGRAM), hashes_of(PROGRAM.replace(old, new)))
    assert difference - {"root"} == names - {"root"}


MODULES = {
    "env.py": "import math\nimport numpy\nfrom shared_a_run.rewards import REWARD\n\ndef make():\n    import late_a_run\n",
    "shared_a_run/__init__.py": "",
    "shared_a_run/rewards.py": "from . import scales\nREWARD = 1.0\n",
    "shared_a_run/scales.py": "SCALE = 1.0\n",
    "late_a_run.py": "LATE = 1\n",
}


@pytest.mark.parametrize("file", MODULES)
def test_a_module_counts_with_what_it_imports(tmp_path, monkeypatch, file):
    for name, text in MODULES.items():
        path = tmp_path / name.replace("env.py", "env_a_run.py")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    module = __import__("env_a_run")
    try:
        old = fingerprint({"env": module.make}, config={"env": {"id": "env_a_run:Mine-v0"}})
        assert old.keys() == {
            "env",
            "env_a_run",
            "shared_a_run",
            "shared_a_run.rewards",
            "shared_a_run.scales",
            "late_a_run",
        }
        path = tmp_path / file.replace("env.py", "env_a_run.py")
        path.write_text(f"{path.read_text()}\n# changed\n")
        name = file.replace("env.py", "env_a_run.py").removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        assert changed(old, fingerprint({"env": module.make})) == {name}
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0].endswith("_a_run")]:
            del sys.modules[name]


VALUES = [
    (partial(int, base=8), partial(int, base=9)),
    (np.arange(3), np.arange(3.0)),
    (np.array([1, 2]), np.array([1, 3])),
    ({"a": [1, (2,)]}, {"a": [1, (3,)]}),
    (pytest.approx(1.0), pytest.approx(2.0)),
    (collections.deque([1]), collections.deque([2])),
    (range(3), range(4)),
]


@pytest.mark.parametrize(("value", "other"), VALUES)
def test_values_count_and_installed_code_does_not(value, other):
    assert fingerprint({"x": value}).keys() == {"x"}
    assert fingerprint({"x": value}) != fingerprint({"x": other})
    assert fingerprint({"x": value}, described={"x"}) == {}


def test_a_value_may_contain_itself():
    loop = [1]
    loop.append(loop)
    assert fingerprint({"x": loop}) == fingerprint({"x": loop})


def test_hashes_are_the_same_in_every_process():
    script = f"{PROGRAM}\nfrom envpool_bridge.envs.fingerprint import fingerprint\nprint(fingerprint({{'root': root}}))"
    outputs = [
        subprocess.run([sys.executable, "-c", script], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True)
        for seed in ("1", "2")
    ]
    assert outputs[0].stdout == outputs[1].stdout != b""
