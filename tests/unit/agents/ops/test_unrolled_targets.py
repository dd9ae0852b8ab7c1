"""Targets of an unrolled model against a walk along each window."""

import numpy as np

from agents.api import Trajectory
from agents.ops.unrolled_targets import unrolled_targets

K, N_STEP, DISCOUNT, WINDOWS = 4, 3, 0.9, 400
L = K + N_STEP


def random_windows(seed=0):
    """Windows with terminal, truncated and lost ends; after each follows one step that only resets."""
    random = np.random.default_rng(seed)
    valid = np.ones((L, WINDOWS), bool)
    terminated, truncated = np.zeros((2, L, WINDOWS), bool)
    for row in range(WINDOWS):
        resets = random.random() < 0.2
        for t in range(L):
            valid[t, row] = not resets
            resets = False
            if valid[t, row]:
                end = random.choice(["none"] * 6 + ["terminated", "truncated", "lost"])
                terminated[t, row], truncated[t, row] = end == "terminated", end == "truncated"
                resets = end != "none"
    return Trajectory(
        observation=(),
        is_first=np.zeros((L + 1, WINDOWS), bool),
        action=(),
        reward=random.normal(size=(L, WINDOWS)).astype(np.float32),
        terminated=terminated,
        truncated=truncated,
        valid=valid,
        policy_version=np.zeros((L, WINDOWS), np.int32),
        extras={},
    ), random.normal(size=(L + 1, WINDOWS)).astype(np.float32)


def n_step_return(window, bootstrap, row, start):
    """Sums rewards from a step until n of them, an end, or the window's end; then bootstraps."""
    total, factor = 0.0, 1.0
    for t in range(start, min(start + N_STEP, L)):
        total += factor * float(window.reward[t, row])
        factor *= DISCOUNT
        if window.terminated[t, row]:
            return total
        if window.truncated[t, row] or (t + 1 < L and not window.valid[t + 1, row]):
            return total + factor * float(bootstrap[t + 1, row])
    return total + factor * float(bootstrap[min(start + N_STEP, L), row])


def walk(window, bootstrap, row):
    """(reward, value, known, acted) of the states 0 to K of one window."""
    state, targets = "acted" if window.valid[0, row] else "unknown", []
    for t in range(K + 1):
        if state == "acted":
            targets.append((float(window.reward[t, row]), n_step_return(window, bootstrap, row, t), 1.0, 1.0))
            if window.terminated[t, row]:
                state = "terminal"
            elif window.truncated[t, row] or (t + 1 < L and not window.valid[t + 1, row]):
                state = "unknown"
        else:
            targets.append((0.0, 0.0, float(state == "terminal"), 0.0))
    return np.array(targets)


def test_targets_equal_a_walk_along_each_window():
    window, bootstrap = random_windows()
    targets = unrolled_targets(window, bootstrap, unroll_steps=K, n_step=N_STEP, discount=DISCOUNT)
    expected = np.stack([walk(window, bootstrap, row) for row in range(WINDOWS)], axis=2)
    np.testing.assert_allclose(targets.reward, expected[:K, 0], atol=1e-5)
    np.testing.assert_allclose(targets.value, expected[:, 1], atol=1e-5)
    np.testing.assert_array_equal(targets.known, expected[:, 2])
    np.testing.assert_array_equal(targets.acted, expected[:, 3])
    # Every kind of state occurs.
    assert {(1.0, 1.0), (1.0, 0.0), (0.0, 0.0)} == set(
        zip(targets.known.ravel().tolist(), targets.acted.ravel().tolist(), strict=True)
    )
