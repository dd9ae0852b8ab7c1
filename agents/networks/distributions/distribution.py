"""Interface of a distribution over actions."""

from collections.abc import Callable
from typing import NamedTuple

from agents.api import Action, Array


class Distribution(NamedTuple):
    """Pure functions of the policy head's output. Actions are arrays, or trees of them with the structure of the action spec.

    Attributes:
        num_parameters: P, size of the policy head.
        sample: Maps (parameters [B, P], typed keys [B], which are consumed) to an action [B, ...] of each row.
        mode: Maps parameters [..., P] to the most likely actions [..., *action shape].
        log_prob: Maps (parameters [..., P], actions [..., *action shape]) to log-probabilities or log-densities [...] in nats;
            densities are with respect to the stored action.
        entropy: Maps parameters [..., P] to entropies [...] in nats, of the same density: that of TanhNormal is of the squashed
            action, that of DiagonalNormal of the action before the environment clips it.
        from_noise: Maps (parameters [B, P], standard normal noise [B, D]) to actions [B, ...], as `sample` does with noise of its
            own; None of distributions that are not Gaussian.
        inside: Maps actions that the policy did not draw, [..., *action shape], to those whose log-probabilities it learns from.
            TanhNormal moves them to within 0.999 of its bounds: a bound itself is no number before tanh.
    """

    num_parameters: int
    sample: Callable[[Array, Array], Action]
    mode: Callable[[Array], Action]
    log_prob: Callable[[Array, Action], Array]
    entropy: Callable[[Array], Array]
    from_noise: Callable[[Array, Array], Array] | None = None
    inside: Callable[[Action], Action] = lambda action: action
