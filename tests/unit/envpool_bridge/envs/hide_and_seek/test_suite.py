"""Hide-and-seek as a suite: rows of agents, options, infos, pictures."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("mujoco")

from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.envs.hide_and_seek.env import HideAndSeek
from envpool_bridge.envs.hide_and_seek.game import Base
from envpool_bridge.envs.protocol import EpisodeReset, first_rows, step_rows
from envpool_bridge.envs.seeding import EpisodeSeeds
from envpool_bridge.errors import UserError
from envpool_bridge.shm.layout import PoolShape, make_layout
from envpool_bridge.shm.slots import allocate_slots
from envpool_bridge.spec.specs import MultiDiscreteSpec
from envpool_bridge.spec.tree import map_leaves

STEPS = 12


def config(env_id="base", **kwargs):
    return EnvConfig(env_id, "hide_and_seek", json.dumps(kwargs), info_fields=("max_box_move", "seen_fraction"))


def test_rows_are_the_agents_of_the_environment_stepped_alone():
    source = config(hiders=1, seekers=2, horizon=8, global_state=True).source()
    spec = source.spec()
    assert [agent.name for agent in spec.agents] == ["hider_0", "seeker_0", "seeker_1"]
    assert spec.critic_only == ("state",)
    assert isinstance(spec.action, MultiDiscreteSpec)
    assert spec.action.num_values == (11, 11, 11, 2, 2)
    rows = source.make_rows(range(3), 5, False)
    slot = allocate_slots(make_layout(spec, PoolShape(1, 1, 1, 3, STEPS, 1), {}))[0]
    rows.reset(EpisodeReset((0,) * 3, (None,) * 3), first_rows(slot))
    step_rows(slot, slice(0, STEPS)).prepare()
    rng = np.random.default_rng(0)
    slot.action[:] = rng.integers(0, (11, 11, 11, 2, 2), slot.action.shape)
    for t in range(STEPS):
        rows.step(slot.action[t], step_rows(slot, t))
    rows.close()

    env = HideAndSeek(Base(1, 2, horizon=8))
    seeds = EpisodeSeeds(5, 0)
    shown, _ = env.reset(seed=seeds.seed(0))
    for t in range(STEPS):
        for place, observation in enumerate(shown.values()):
            stored = map_leaves(lambda values, t=t, place=place: values[t, place], dict(slot.observation))
            assert np.array_equal(stored.pop("state"), env.state())
            assert set(stored) == set(observation)
            for name, value in observation.items():
                assert np.array_equal(stored[name], value)
        if t == 8:  # the environment's reset is a step of its own
            assert not slot.valid[t].any()
            shown, _ = env.reset(seed=seeds.seed(1))
            continue
        actions = dict(zip(env.agents, slot.action[t], strict=True))
        shown, rewards, _, truncated, infos = env.step(actions)
        assert slot.reward[t].tolist() == list(rewards.values())
        assert slot.truncated[t].tolist() == list(truncated.values())
        assert slot.valid[t].all()
        for name in ("max_box_move", "seen_fraction"):
            reported = [info.get(name, np.nan) for info in infos.values()]
            np.testing.assert_allclose(slot.infos[name][t], reported, rtol=1e-6)
        assert np.isfinite(slot.infos["seen_fraction"][t]).all() == (t == 7)
        if t == 7:
            assert env.agents == []
            shown, _ = {}, None


@pytest.mark.parametrize(
    ("env_id", "kwargs", "message"),
    [
        ("bas", {}, "unknown game 'bas' of suite 'hide_and_seek': did you mean base?"),
        ("base", {"rooms": 3}, "unknown option 'rooms'"),
        ("randomwalls", {"hider": 3}, "unknown option 'hider'; did you mean hiders?"),
        ("randomwalls", {"boxes": 3}, r"option boxes must be \[an integer, an integer\], got 3"),
        ("base", {"seekers": 7}, r"hiders and seekers must be 1 to 3 each, got \(2, 7\)"),
    ],
)
def test_suite_rejects_unknown_games(env_id, kwargs, message):
    with pytest.raises(UserError, match=message):
        config(env_id, **kwargs).source()


@pytest.mark.slow
def test_pictures_show_the_floor_the_agents_and_locks():
    program = (
        "import numpy as np\n"
        "from envpool_bridge.envs.config import EnvConfig\n"
        "env = EnvConfig('base', 'hide_and_seek').source().make_env(render_mode='rgb_array')\n"
        "env.reset(seed=0); one = env.render(); env.episode.locks.locked[0] = True; two = env.render()\n"
        "env.reset(seed=1); three = env.render(); env.close(); env.close()\n"
        "assert one.shape == (480, 480, 3) and one.dtype == np.uint8\n"
        "blue = (one[..., 2].astype(int) - one[..., 0] > 80).sum(); red = (one[..., 0].astype(int) - one[..., 2] > 80).sum()\n"
        "assert blue > 100 and red > 100, (blue, red)\n"
        "assert 50 < (one != two).any(axis=-1).sum() < 40000 and (one != three).any()\n"
    )
    try:
        import mujoco.egl

        mujoco.egl.GLContext(16, 16).free()
    except (ImportError, AttributeError, RuntimeError) as error:
        pytest.skip(f"this machine cannot draw: {error}")
    environ = {**os.environ, "MUJOCO_GL": "egl"}
    result = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
