"""V-trace against eq. 1 of the paper summed over each episode, GAE, rlax and values by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.ops import returns
from agents.ops.vtrace import VTraceConfig, vtrace
from envpool_bridge.errors import UserError

DISCOUNT = 0.97
NO_BOUND = VTraceConfig(rho_bar=float("inf"), c_bar=float("inf"), policy_rho_bar=float("inf"))


def random_case(seed, num_steps, num_rows, p_end=0.2):
    """Log-ratios, rewards, values and flags in a legal NEXT_STEP pattern: the step after an end is invalid and ends nothing."""
    rng = np.random.default_rng(seed)
    log_ratio = rng.normal(scale=0.7, size=(num_steps, num_rows)).astype(np.float32)
    reward = rng.normal(size=(num_steps, num_rows)).astype(np.float32)
    value = rng.normal(size=(num_steps + 1, num_rows)).astype(np.float32)
    terminated, truncated = rng.random((2, num_steps, num_rows)) < p_end / 2
    valid = np.ones((num_steps, num_rows), bool)
    valid[0] = rng.random(num_rows) > 0.3
    for t in range(num_steps):
        terminated[t] &= valid[t]
        truncated[t] &= valid[t]
        if t + 1 < num_steps:
            valid[t + 1] = ~(terminated[t] | truncated[t])
    return log_ratio, reward, value, terminated, truncated, valid


def eq_1(log_ratio, reward, value, terminated, truncated, valid, config):
    """v_s = V_s + sum_t g^(t-s) (c_s ... c_(t-1)) rho_t delta_t to the end of the episode, for every s by itself."""
    num_steps, num_rows = reward.shape
    ratio = np.exp(log_ratio.astype(np.float64))
    rho, c = np.minimum(config.rho_bar, ratio), config.lambda_ * np.minimum(config.c_bar, ratio)
    target, advantage = value[:-1].astype(np.float64), np.zeros(reward.shape)
    for row in range(num_rows):
        next_target = float(value[-1, row])
        for s in reversed(range(num_steps)):
            if valid[s, row]:
                product, t = 1.0, s
                while t < num_steps and valid[t, row]:
                    beyond = 0.0 if terminated[t, row] else DISCOUNT * value[t + 1, row]
                    delta = reward[t, row] + beyond - value[t, row]
                    target[s, row] += DISCOUNT ** (t - s) * product * rho[t, row] * delta
                    if terminated[t, row] or truncated[t, row]:
                        break
                    product *= c[t, row]
                    t += 1
                if terminated[s, row]:
                    follows = 0.0
                elif truncated[s, row]:
                    follows = value[s + 1, row]
                else:
                    follows = config.lambda_ * next_target + (1.0 - config.lambda_) * value[s + 1, row]
                gain = reward[s, row] + DISCOUNT * follows - value[s, row]
                advantage[s, row] = min(config.policy_rho_bar, ratio[s, row]) * gain
            next_target = target[s, row]
    return target, advantage


def computed(case, config):
    return vtrace(*map(jnp.asarray, case), discount=DISCOUNT, config=config)


@pytest.mark.parametrize("num_steps", [1, 2, 17])
@pytest.mark.parametrize(
    "config",
    [VTraceConfig(), VTraceConfig(rho_bar=2.0, c_bar=0.8, policy_rho_bar=1.5, lambda_=0.9), NO_BOUND],
    ids=["paper", "other bounds", "no bounds"],
)
def test_vtrace_matches_sums_of_the_paper(num_steps, config):
    case = random_case(num_steps, num_steps, num_rows=6)
    target, advantage = eq_1(*case, config)
    got = computed(case, config)
    np.testing.assert_allclose(got.target, target, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(got.advantage, advantage, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("lambda_", [1.0, 0.9, 0.0])
def test_on_policy_it_is_gae_and_the_lambda_return(lambda_):
    _, *rest = random_case(3, 20, num_rows=6)
    got = computed((np.zeros_like(rest[0]), *rest), VTraceConfig(lambda_=lambda_))
    expected = returns.gae(*map(jnp.asarray, rest), discount=DISCOUNT, lambda_=lambda_)
    np.testing.assert_allclose(got.advantage, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(got.target, expected + rest[1][:-1], rtol=1e-5, atol=1e-5)


@pytest.mark.slow  # to compile
@pytest.mark.parametrize("lambda_", [1.0, 0.8])
def test_it_agrees_with_rlax_where_episodes_only_terminate(lambda_):
    rlax = pytest.importorskip("rlax")
    log_ratio, reward, value, terminated, truncated, valid = random_case(4, 25, num_rows=4)
    truncated[:], valid[:] = False, True
    config = VTraceConfig(rho_bar=1.3, policy_rho_bar=1.1, lambda_=lambda_)
    got = computed((log_ratio, reward, value, terminated, truncated, valid), config)
    one_row = lambda v, v_next, r, g, rho: rlax.vtrace_td_error_and_advantage(v, v_next, r, g, rho, lambda_, 1.3, 1.1)  # noqa: E731
    discount = (DISCOUNT * ~terminated).astype(np.float32)
    expected = jax.vmap(one_row, 1, 1)(value[:-1], value[1:], reward, discount, np.exp(log_ratio))
    np.testing.assert_allclose(got.target, expected.errors + value[:-1], rtol=1e-4, atol=1e-5)
    # rlax bootstraps the last advantage from the value alone, as here: v_T = V_T.
    np.testing.assert_allclose(got.advantage, expected.pg_advantage, rtol=1e-4, atol=1e-5)


def test_two_steps_by_hand():
    # Ratios 2 and 1/2, g = 1/2: delta_0 = 1 + 4/2 - 2 = 1 and delta_1 = 3 + 6/2 - 4 = 2.
    column = lambda *x: jnp.array(x, jnp.float32)[:, None]  # noqa: E731
    no = jnp.zeros((2, 1), bool)
    got = vtrace(
        jnp.log(column(2.0, 0.5)), column(1.0, 3.0), column(2.0, 4.0, 6.0), no, no, ~no,
        discount=0.5, config=VTraceConfig(policy_rho_bar=1.5),
    )  # fmt: skip
    # v_1 = 4 + 1/2 * 2 = 5;  v_0 = 2 + 1 * 1 + 1/2 * 1 * (5 - 4) = 3.5
    np.testing.assert_allclose(got.target[:, 0], [3.5, 5.0], rtol=1e-6)
    # 1.5 * (1 + 5/2 - 2) and 1/2 * (3 + 6/2 - 4)
    np.testing.assert_allclose(got.advantage[:, 0], [2.25, 1.0], rtol=1e-6)


def test_vtrace_ignores_invalid_steps_bit_for_bit():
    case = random_case(5, 30, num_rows=4)
    log_ratio, reward, *rest, valid = case
    assert not valid.all()
    spoiled = (np.where(valid, log_ratio, np.nan), np.where(valid, reward, np.inf), *rest, valid)
    one, other = computed(case, NO_BOUND), computed(spoiled, NO_BOUND)
    np.testing.assert_array_equal(one.target, other.target)
    np.testing.assert_array_equal(one.advantage, other.advantage)
    assert not np.asarray(one.advantage)[~valid].any()


@pytest.mark.parametrize("change", [{"rho_bar": 0.0}, {"c_bar": 2.0}, {"lambda_": 1.1}])
def test_vtrace_rejects_bounds_out_of_range(change):
    with pytest.raises(UserError, match=next(iter(change))):
        VTraceConfig(**change)
