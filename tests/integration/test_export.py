"""`jaxsrl export`, and the documented programs: they run where neither jax nor jaxsrl can be imported."""

import json
import re
import subprocess
import sys
from pathlib import Path

import gymnasium
import jax
import numpy as np
import pytest

from agents.api import Mode
from jaxsrl.cli.main import main
from jaxsrl.evaluation.load_agent import load_agent
from tests.integration.test_cli import save_run

PAGE = (Path(__file__).parents[2] / "docs/how_to/export.md").read_text()
ACT, SERVE = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)
BLOCKED = """
import sys
for name in ("jax", "jaxlib", "flax", "jaxsrl", "agents", "envpool_bridge"):
    sys.modules[name] = None
sys.path.insert(0, ".")
"""


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    here = tmp_path_factory.mktemp("export")
    run = save_run(here / "run", (3,))
    main(["export", str(run), "--to", "numpy", "--out", str(here / "exported")])
    return here


def printed_without_jax(here, code, text=""):
    """Standard output of a program in an interpreter in which imports of jax and jaxsrl fail."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", BLOCKED + code],
        cwd=here,
        input=text,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def played_by_agent(here):
    """Observations and greedy actions of one episode of the agent of the run, with seed 0."""
    loaded = load_agent(here / "run")
    agent, act = loaded.agent, jax.jit(loaded.agent.act, static_argnums=5)
    env, keys = gymnasium.make("CartPole-v1"), jax.random.split(jax.random.key(0), 1)
    observation, _ = env.reset(seed=0)
    state, done, observations, actions = agent.initial_agent_state(1), False, [], []
    while not done:
        first = np.array([not actions])
        action, _, state = act(loaded.params, observation[None], state, first, keys, Mode.GREEDY)
        observations.append(observation.tolist())
        actions.append(int(np.asarray(action)[0]))
        observation, _, terminated, truncated, _ = env.step(actions[-1])
        done = terminated or truncated
    return observations, actions


def test_exported_policy_plays_like_the_agent_without_jax(exported):
    _, actions = played_by_agent(exported)
    code = ACT.replace("    observation, reward", "    print(int(action))\n    observation, reward")
    assert code != ACT
    *printed, total = printed_without_jax(exported, code).split()
    assert [int(action) for action in printed] == actions
    assert float(total) == len(actions)


def test_documented_program_serves_actions_over_a_pipe(exported):
    observations, actions = played_by_agent(exported)
    requests = [{"observation": observation, "is_first": step == 0} for step, observation in enumerate(observations)]
    text = "".join(json.dumps(request) + "\n" for request in requests)
    assert [json.loads(line) for line in printed_without_jax(exported, SERVE, text).splitlines()] == actions


def test_export_command_rejects_an_existing_directory(exported, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["export", str(exported / "run"), "--out", str(exported / "exported")])
    assert "is not an empty directory: choose another --out" in capsys.readouterr().err
