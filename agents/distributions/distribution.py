"""Interface of a distribution over actions."""

from typing import NamedTuple, Protocol

from agents.api import Action, Array


class SampleFn(Protocol):
    """Actions [B, ...] from parameters [B, P] and typed keys [B] (consumed)."""

    def __call__(self, parameters: Array, keys: Array) -> Action: ...


class LogProbFn(Protocol):
    """Log-probabilities [...] in nats of actions [..., *action shape] under parameters [..., P]."""

    def __call__(self, parameters: Array, action: Action) -> Array: ...


class ModeFn(Protocol):
    """Most likely actions [..., *action shape] under parameters [..., P]."""

    def __call__(self, parameters: Array) -> Action: ...


class EntropyFn(Protocol):
    """Entropies [...] in nats under parameters [..., P]."""

    def __call__(self, parameters: Array) -> Array: ...


class Distribution(NamedTuple):
    """Pure functions of the policy head's output. Actions are arrays, or trees of them with the structure of the action spec.

    Attributes:
        num_parameters: P, size of the policy head.
        sample: Samples an action for each row.
        mode: Returns the most likely action.
        log_prob: Returns log-probabilities or log-densities in nats; densities are with respect to the stored action.
        entropy: Returns entropies in nats; of TanhNormal that of the Gaussian before squashing (no closed form after).
    """

    num_parameters: int
    sample: SampleFn
    mode: ModeFn
    log_prob: LogProbFn
    entropy: EntropyFn
