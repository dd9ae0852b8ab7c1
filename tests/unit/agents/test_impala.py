"""IMPALA: its advantages and targets by hand, and its metrics of the probability ratio."""

import numpy as np
import pytest

from agents import a2c, impala
from agents.api import Trajectory
from agents.ops.vtrace import VTraceConfig
from jaxsrl.config.serialization import from_json, to_json
from tests.support.actor_critic_loss import learned


def batch(valid=(True, True, True, False)) -> Trajectory:
    """One row, four steps, the last one truncated."""
    column = lambda *x: np.array(x)[:, None]  # noqa: E731
    no = np.zeros((4, 1), bool)
    reward, truncated = column(1.0, -2.0, 0.5, 0.0).astype(np.float32), column(False, False, True, False)
    return Trajectory(None, None, None, reward, no, truncated, column(*valid), no, {})


VALUE = np.array([0.5, 1.0, -1.0, 2.0, 7.0], np.float32)[:, None]
LOG_RATIO = np.log(np.array([3.0, 0.5, 2.0, 1.0], np.float32))[:, None]


def test_at_a_ratio_of_one_it_is_a2c():
    got = learned(impala, impala.IMPALAConfig(), batch(), 0.0, VALUE, counts=3)
    expected = learned(a2c, a2c.A2CConfig(), batch(), 0.0, VALUE, counts=3)
    np.testing.assert_allclose(got.advantage, expected.advantage, rtol=1e-6)
    np.testing.assert_allclose(got.target, expected.target, rtol=1e-6)


def test_impala_ratio_metrics_are_of_valid_steps():
    got = learned(impala, impala.IMPALAConfig(), batch(), LOG_RATIO, VALUE, counts=3)
    assert float(got.metrics["vtrace/rho_mean"]) == pytest.approx((1.0 + 0.5 + 1.0) / 3)
    assert float(got.metrics["vtrace/clipped_fraction"]) == pytest.approx(2 / 3)
    assert got.advantage[3, 0] == 0.0


def test_the_bounds_of_the_configuration_are_used():
    config = impala.IMPALAConfig(vtrace=VTraceConfig(rho_bar=4.0, policy_rho_bar=4.0), discount=0.0)
    got = learned(impala, config, batch(), LOG_RATIO, VALUE, counts=3)
    # Without a future: rho (r - V), and V + rho (r - V).
    np.testing.assert_allclose(got.advantage[:, 0], [1.5, -1.5, 3.0, 0.0], rtol=1e-5)
    np.testing.assert_allclose(got.target[:3, 0], [2.0, -0.5, 2.0], rtol=1e-5)


def test_bounds_are_read_back_from_json():
    config = impala.IMPALAConfig(vtrace=VTraceConfig(rho_bar=2.0))
    assert from_json(impala.IMPALAConfig, to_json(config)) == config
