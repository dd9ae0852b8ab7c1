"""V-trace: values and advantages of a target policy from actions of another policy, under NEXT_STEP episode boundaries.

As in `agents.ops.returns`, `value[t]` belongs to `observation[t]`, a truncated step bootstraps from `value[t + 1]`, and a step
with `valid=False` is a reset: its entries are 0, and no correction crosses it.

Source: Espeholt et al. 2018 (arXiv:1802.01561), eq. 1, remark 2 and section 4.2.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from agents.api import Array
from agents.ops import validate
from agents.settings import Nested
from envpool_bridge.errors import UserError


@dataclasses.dataclass(frozen=True)
class VTraceConfig(Nested):
    """Bounds on probability ratios; `float("inf")` does not truncate them.

    Attributes:
        rho_bar: Bound of the ratio on each temporal difference. If it truncates, values are of a policy between the two.
        c_bar: Bound of the ratios on the trace, at most `rho_bar`. It changes the speed of learning, not the fixed point.
        policy_rho_bar: Bound of the ratio on the policy gradient.
        lambda_: Further decay of the trace, in [0, 1]: 1 as in eq. 1, less as in remark 2.
    """

    rho_bar: float = 1.0
    c_bar: float = 1.0
    policy_rho_bar: float = 1.0
    lambda_: float = 1.0

    def __post_init__(self) -> None:
        validate.positive(self, "rho_bar", "c_bar", "policy_rho_bar", prefix="vtrace.")
        validate.fraction(self, "lambda_", prefix="vtrace.")
        if self.c_bar > self.rho_bar:
            raise UserError(
                f"vtrace.c_bar must not exceed rho_bar: got {self.c_bar} and {self.rho_bar}; use c_bar={self.rho_bar}"
            )


class VTrace(NamedTuple):
    """Targets of V-trace for each step.

    Attributes:
        target: [T, B] float32, v_t: target of the value; the value itself where not valid.
        advantage: [T, B] float32, of the action for the policy gradient, times its truncated ratio; 0 where not valid.
    """

    target: Array
    advantage: Array


def vtrace(
    log_ratio: Array,
    reward: Array,
    value: Array,
    terminated: Array,
    truncated: Array,
    valid: Array,
    *,
    discount: float,
    config: VTraceConfig,
) -> VTrace:
    """Returns value targets and policy-gradient advantages.

    With ratio_t = exp(log_ratio_t), rho_t = min(rho_bar, ratio_t) and c_t = lambda min(c_bar, ratio_t):

    delta_t = r_t + g (1 - terminated_t) V_{t+1} - V_t
    v_t - V_t = rho_t delta_t + g c_t (1 - ended_t) (v_{t+1} - V_{t+1})
    advantage_t = min(policy_rho_bar, ratio_t) (delta_t + g lambda (1 - ended_t) (v_{t+1} - V_{t+1}))

    where v_T = V_T. With lambda = 1 the last line is the paper's r_t + g v_{t+1} - V_t. If both policies are the same and no
    bound is below 1, the advantage equals `returns.gae`, and v_t the lambda-return. This function stops no gradient.

    Args:
        log_ratio: [T, B] float32, log target(a|o) - log behavior(a|o), nats; anything where not valid.
        reward: [T, B] float32.
        value: [T+1, B] float32, of every observation.
        terminated: [T, B] bool.
        truncated: [T, B] bool.
        valid: [T, B] bool.
        discount: g in [0, 1].
        config: Bounds and lambda.
    """
    ratio = jnp.exp(jnp.where(valid, log_ratio, 0.0))
    delta = jnp.where(valid, reward + discount * (~terminated) * value[1:] - value[:-1], 0.0)
    carried = discount * config.lambda_ * (valid & ~(terminated | truncated))
    trace = carried * jnp.minimum(config.c_bar, ratio)

    def step(later: Array, inputs: tuple[Array, Array]) -> tuple[Array, tuple[Array, Array]]:
        weighted_t, trace_t = inputs
        correction = weighted_t + trace_t * later
        return correction, (correction, later)

    weighted = jnp.minimum(config.rho_bar, ratio) * delta
    # `later` is the correction v - V of the step after each: the policy's advantage looks one step ahead of the target's.
    _, (correction, later) = jax.lax.scan(step, jnp.zeros_like(delta[0]), (weighted, trace), reverse=True, unroll=8)
    advantage = jnp.minimum(config.policy_rho_bar, ratio) * (delta + carried * later)
    return VTrace(value[:-1] + correction, advantage)


def unweighted_vtrace(
    log_ratio: Array,
    reward: Array,
    value: Array,
    terminated: Array,
    truncated: Array,
    valid: Array,
    *,
    discount: float,
    config: VTraceConfig,
) -> VTrace:
    """Returns value targets of V-trace, and its advantages without their ratio, for a surrogate that multiplies by its own.

    Args:
        log_ratio: Logarithm of the ratio, as in `vtrace`, and so are all other arrays.
        reward: [T, B] float32.
        value: [T+1, B] float32.
        terminated: [T, B] bool.
        truncated: [T, B] bool.
        valid: [T, B] bool.
        discount: g in [0, 1].
        config: Bounds and lambda; `policy_rho_bar` is not used.
    """
    target, _ = vtrace(log_ratio, reward, value, terminated, truncated, valid, discount=discount, config=config)
    following = jnp.concatenate([target[1:], value[-1:]])
    onward = value[1:] + config.lambda_ * ~(terminated | truncated) * (following - value[1:])
    advantage = (reward + discount * ~terminated * onward - value[:-1]) * valid
    return VTrace(target, advantage)
