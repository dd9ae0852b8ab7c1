"""Simple spread in JAX against mpe2's: the same positions and actions give the same observations and rewards."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.errors import UserError
from jaxsrl.envs.protocol import validate_env
from jaxsrl.envs.registry import make_env, make_jax_env
from jaxsrl.envs.simple_spread import SimpleSpread, SpreadState

simple_spread_v3 = pytest.importorskip("mpe2.simple_spread_v3")


def state_of(world):
    def positions(entities):
        return jnp.asarray(np.stack([entity.state.p_pos for entity in entities]), jnp.float32)

    agents = positions(world.agents)
    return SpreadState(agents, jnp.zeros_like(agents), positions(world.landmarks), jnp.int32(0))


@pytest.mark.parametrize(("count", "ratio", "team"), [(3, 0.5, "own"), (2, 0.3, "mean"), (4, 0.0, "sum")])
def test_steps_are_those_of_mpe2(count, ratio, team):
    env = SimpleSpread(count, ratio, max_cycles=25, team_reward=team, global_state=True)
    theirs = simple_spread_v3.parallel_env(N=count, local_ratio=ratio, max_cycles=25)
    step, rng, touched = jax.jit(env.step), np.random.default_rng(0), 0
    for seed in range(8):
        shown, _ = theirs.reset(seed=seed)
        world = theirs.unwrapped.world
        if seed % 2:  # agents that touch from the start
            world.agents[1].state.p_pos = world.agents[0].state.p_pos + rng.uniform(-0.2, 0.2, 2)
        state = state_of(world)
        for time in range(25):
            action = rng.integers(0, 5, count)
            shown, rewards, _, truncated, _ = theirs.step(
                {name: int(action[k]) for k, name in enumerate(theirs.possible_agents)}
            )
            result = step(state, jnp.asarray(action, jnp.int32), jax.random.key(0))
            expected = np.stack([shown[name] for name in theirs.possible_agents])
            np.testing.assert_allclose(result.observation["observation"], expected, atol=1e-4)
            for row in np.asarray(result.observation["state"]):
                np.testing.assert_allclose(row, expected.reshape(-1), atol=1e-4)
            reward = np.array([rewards[name] for name in theirs.possible_agents])
            touched += len(set(reward.round(6))) > 1
            total = {"own": reward, "mean": np.full(count, reward.mean()), "sum": np.full(count, reward.sum())}[team]
            np.testing.assert_allclose(result.reward, total, atol=1e-4)
            assert bool(result.truncated) == all(truncated.values()) == (time == 24)
            assert not result.terminated
            state = result.state
    assert touched or ratio == 0.0 or count == 2  # two agents always touch each other alike


def test_the_spec_of_a_row_is_that_of_suite_mpe():
    kwargs = '{"team_reward": "mean", "global_state": true}'
    ours = make_env(EnvConfig("simple_spread_v3", "jax", kwargs))
    theirs = make_env(EnvConfig("simple_spread_v3", "mpe", kwargs)).spec()
    spec = validate_env(make_jax_env(EnvConfig("simple_spread_v3", "jax", kwargs)))
    assert ours.spec().agents == spec.agents
    assert spec.critic_only == theirs.critic_only
    assert [agent.name for agent in spec.agents] == [agent.name for agent in theirs.agents]
    for name in ("observation", "state"):
        assert spec.observation[name].shape == theirs.observation[name].shape
    assert spec.action.num_values == theirs.action.num_values


def test_resets_place_everything_within_the_arena():
    state, seen = jax.vmap(SimpleSpread().reset)(jax.random.split(jax.random.key(0), 500))
    for places in (np.asarray(state.position), np.asarray(state.landmark)):
        assert (np.abs(places) <= 1.0).all()
        np.testing.assert_allclose(places.mean(), 0.0, atol=0.05)
        np.testing.assert_allclose(places.std(), 1 / 3**0.5, atol=0.02)
    assert (np.asarray(seen)[..., :2] == 0.0).all()


def test_agents_at_one_place_have_finite_velocities():
    env = SimpleSpread(2)
    state = SpreadState(jnp.zeros((2, 2)), jnp.zeros((2, 2)), jnp.ones((2, 2)), jnp.int32(0))
    for _ in range(2):
        result = env.step(state, jnp.zeros(2, jnp.int32), jax.random.key(0))
        state = result.state
        assert np.isfinite(result.observation).all()
        assert np.isfinite(result.reward).all()


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ('{"num_agents": 0}', "num_agents must be at least 1"),
        ('{"local_ratio": 2}', "local_ratio must be between 0 and 1"),
        ('{"team_reward": "ours"}', "team_reward must be one of 'own', 'sum', 'mean'"),
        ('{"num_agents": 2.0}', "num_agents must be an integer"),
        ('{"global_state": "no"}', "global_state must be true or false"),
        ('{"walls": true}', "unknown option 'walls'"),
    ],
)
def test_bad_arguments_are_rejected(kwargs, message):
    with pytest.raises(UserError, match=message):
        make_env(EnvConfig("simple_spread_v3", "jax", kwargs))
