"""IMPALA: what it makes of a trajectory, and what it reports of the probability ratios."""

import numpy as np
import pytest

from agents import a2c, impala
from agents.api import Trajectory
from agents.ops.vtrace import VTraceConfig
from jaxsrl.config.serialization import from_json, to_json


def batch(valid=(True, True, True, False)) -> Trajectory:
    """One row, four steps, the last one truncated."""
    column = lambda *x: np.array(x)[:, None]  # noqa: E731
    no = np.zeros((4, 1), bool)
    reward, truncated = column(1.0, -2.0, 0.5, 0.0).astype(np.float32), column(False, False, True, False)
    return Trajectory(None, None, None, reward, no, truncated, column(*valid), no, {})


VALUE = np.array([0.5, 1.0, -1.0, 2.0, 7.0], np.float32)[:, None]
LOG_RATIO = np.log(np.array([3.0, 0.5, 2.0, 1.0], np.float32))[:, None]


def test_where_nobody_is_behind_it_is_a2c():
    got = impala.targets(impala.IMPALAConfig(), batch(), np.zeros_like(LOG_RATIO), VALUE)
    expected = a2c.targets(a2c.A2CConfig(), batch(), np.zeros_like(LOG_RATIO), VALUE)
    np.testing.assert_allclose(got.advantage, expected.advantage, rtol=1e-6)
    np.testing.assert_allclose(got.value, expected.value, rtol=1e-6)
    np.testing.assert_array_equal(got.weight, expected.weight)


def test_the_mean_ratio_is_the_truncated_one_and_only_valid_steps_are_counted():
    got = impala.targets(impala.IMPALAConfig(), batch(), LOG_RATIO, VALUE)
    assert float(got.metrics["vtrace/rho_mean"]) == pytest.approx((1.0 + 0.5 + 1.0) / 3)
    assert float(got.metrics["vtrace/clipped_fraction"]) == pytest.approx(2 / 3)
    np.testing.assert_array_equal(got.weight[:, 0], [1.0, 1.0, 1.0, 0.0])


def test_the_bounds_of_the_configuration_are_used():
    config = impala.IMPALAConfig(vtrace=VTraceConfig(rho_bar=4.0, policy_rho_bar=4.0), discount=0.0)
    got = impala.targets(config, batch(), LOG_RATIO, VALUE)
    # Without a future: rho (r - V), and V + rho (r - V).
    np.testing.assert_allclose(got.advantage[:, 0], [1.5, -1.5, 3.0, 0.0], rtol=1e-6)
    np.testing.assert_allclose(got.value[:3, 0], [2.0, -0.5, 2.0], rtol=1e-6)


def test_a_checkpoint_s_bounds_are_a_configuration_again():
    config = impala.IMPALAConfig(vtrace=VTraceConfig(rho_bar=2.0))
    assert from_json(impala.IMPALAConfig, to_json(config)) == config
