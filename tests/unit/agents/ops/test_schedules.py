"""Schedules against formulas in numpy, their errors, and the factor of an adaptive learning rate."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.a2c import A2CConfig, make_a2c
from agents.networks.config import NetworkConfig
from agents.ops.optimizers import OptimizerConfig, make_optimizer
from agents.ops.schedules import ScheduleConfig, adapt_rate_scale, get_factors, init_factors, make_schedule, set_factor
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec

UPDATES, INITIAL, END = 40, 0.5, 0.1
DECAYS = {
    "constant": lambda passed: np.ones_like(passed),
    "linear": lambda passed: 1.0 - (1.0 - END) * passed,
    "cosine": lambda passed: END + (1.0 - END) * 0.5 * (1.0 + np.cos(np.pi * passed)),
    "exponential": lambda passed: END**passed,
}


@pytest.mark.parametrize("warmup", [0.0, 0.25])
@pytest.mark.parametrize("kind", DECAYS)
def test_make_schedule_equals_its_formula(kind, warmup):
    schedule = make_schedule(ScheduleConfig(kind, END, warmup), INITIAL, UPDATES)
    numbers = np.arange(UPDATES + 9)
    rising = int(warmup * UPDATES)
    passed = np.clip((numbers - rising) / (UPDATES - rising), 0.0, 1.0)
    expected = INITIAL * np.where(numbers < rising, numbers / max(rising, 1), DECAYS[kind](passed))
    got = [float(schedule(jnp.int32(number))) for number in numbers]
    np.testing.assert_allclose(got, expected, rtol=1e-5)


@pytest.mark.parametrize("kind", DECAYS)
def test_an_array_gives_the_schedule_of_its_value(kind):
    config, numbers = ScheduleConfig(kind, 0.3, 0.2), jnp.arange(UPDATES + 9)

    @jax.jit
    def of_array(initial):
        return jax.vmap(make_schedule(config, initial, UPDATES))(numbers)

    for initial in (3.3e-3, 7.7e-4, 1e-5):
        expected = jax.jit(jax.vmap(make_schedule(config, initial, UPDATES)))(numbers)
        # Processors round the multiplication with a constant differently.
        np.testing.assert_allclose(of_array(jnp.float32(initial)), expected, rtol=5e-7)


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"kind": "step"}, "kind must be one of constant, linear, cosine, exponential: got 'step'"),
        ({"kind": "exponential"}, "expected end above 0"),
        ({"kind": "linear", "end": -0.1}, "end must not be negative"),
        ({"kind": "linear", "warmup": 1.0}, "warmup must lie in"),
    ],
)
def test_schedule_config_rejects_invalid_fields(fields, match):
    with pytest.raises(UserError, match=match):
        ScheduleConfig(**fields)


@pytest.mark.parametrize("config", [ScheduleConfig("cosine"), ScheduleConfig(warmup=0.1)])
def test_make_schedule_needs_the_number_of_updates(config):
    with pytest.raises(UserError, match="total_updates=0; set it"):
        make_schedule(config, 0.5, 0)


def test_make_a2c_rejects_an_entropy_schedule_without_total():
    spec = EnvSpec("test", ArraySpec((3,), "float32"), DiscreteSpec(2))
    config = A2CConfig(entropy_coef_schedule=ScheduleConfig("linear"))
    with pytest.raises(UserError, match="total_updates=0"):
        make_a2c(config, spec, NetworkConfig(hidden_sizes=(8,)))


@pytest.mark.parametrize(
    ("kl", "expected"),
    [(0.021, 0.8 / 1.5), (0.019, 0.8), (0.006, 0.8), (0.004, 0.8 * 1.5), (0.0, 0.8)],
)
def test_adapt_rate_scale_follows_the_kl(kl, expected):
    got = adapt_rate_scale(jnp.float32(0.8), jnp.float32(kl), target=0.01, learning_rate=1e-3)
    assert float(got) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("scale", "kl", "expected"), [(1.1e-3, 1.0, 1e-3), (9.0, 1e-4, 10.0)])
def test_adapt_rate_scale_bounds_the_learning_rate(scale, kl, expected):
    got = adapt_rate_scale(jnp.float32(scale), jnp.float32(kl), target=0.01, learning_rate=1e-3)
    assert float(got) == pytest.approx(expected, rel=1e-6)


def test_the_rate_factor_of_every_optimizer_changes_together():
    optimizer = make_optimizer(OptimizerConfig("sgd", momentum=0.0), lambda number: 0.1)
    params = {"w": jnp.ones(3)}
    states = {"actor": optimizer.init(params), "critic": optimizer.init(params)}
    assert get_factors(states) == {"learning_rate_factor": 1.0}
    states = set_factor(states, "learning_rate_factor", 0.25)
    for state in states.values():
        steps, after = optimizer.update({"w": jnp.full(3, 2.0)}, state, params, num_updates=0)
        np.testing.assert_allclose(steps["w"], -0.1 * 0.25 * 2.0, rtol=1e-6)
        assert get_factors(after) == {"learning_rate_factor": 0.25}
    assert get_factors({"other": jnp.ones(()), "info_factor": jnp.ones(3)}) == {}


def test_a_factor_changes_by_its_name_alone():
    extra = {
        "ours": {**init_factors("entropy_coef", "other"), "target": jnp.ones(())},
        "theirs": init_factors("entropy_coef"),
    }
    assert get_factors(extra) == {"entropy_coef_factor": 1.0, "other_factor": 1.0}
    changed = set_factor(extra, "entropy_coef_factor", 0.5)
    assert changed == {
        "ours": {"entropy_coef_factor": 0.5, "other_factor": 1.0, "target": 1.0},
        "theirs": {"entropy_coef_factor": 0.5},
    }
