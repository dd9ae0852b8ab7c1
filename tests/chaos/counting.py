"""An environment that shows its identity and its number of steps; pools of it, and checks of their slots."""

import itertools
import signal
import time
from collections.abc import Callable
from pathlib import Path

import gymnasium
import numpy as np
from gymnasium import spaces

from envpool_bridge.envs.gymnasium_env import GymnasiumSource
from envpool_bridge.envs.protocol import EpisodeReset
from envpool_bridge.options import SupervisorOptions
from envpool_bridge.pool import EnvPool, PoolOptions
from envpool_bridge.shm.layout import PoolShape

PATIENT = SupervisorOptions(max_restarts=100_000, max_backoff_seconds=0.0)


class Counting(gymnasium.Env):
    """Shows (its episode's own number, steps in the episode, sum of actions, more of that number).

    The reward is the action.
    """

    def __init__(self):
        self.observation_space = spaces.Box(0, np.inf, (4,), np.float32)
        self.action_space = spaces.Discrete(5)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.identity = self.np_random.integers(1, 2**24, 2)
        self.length = int(self.np_random.integers(3, 12))
        self.steps = self.total = 0
        return self.observed(), {}

    def step(self, action):
        self.steps, self.total = self.steps + 1, self.total + int(action)
        self.act_up()
        return self.observed(), float(action), self.steps == self.length, False, {}

    def observed(self):
        return np.array([self.identity[0], self.steps, self.total, self.identity[1]], np.float32)

    def act_up(self):
        """Nothing."""


def make_pool(shape, make_env: Callable[[], gymnasium.Env] = Counting, supervision=PATIENT, **options):
    return EnvPool(GymnasiumSource(make_env), shape, PoolOptions(run_seed=9, supervision=supervision, **options))


def begin(pool):
    """Starts a pool whose rows all start their first episode."""
    rows = pool.shape.rows_per_part
    pool.start([EpisodeReset((0,) * rows, (None,) * rows)] * pool.shape.num_parts)


def act(pool, timeout_seconds=0.1):
    """Acts for all ready lanes; the choice depends only on the row and the step."""
    for lane in pool.wait_ready(timeout_seconds):
        sequence, t = pool.position(lane)
        rows = np.arange(pool.num_rows)[pool.shape.lane_rows(lane)]
        pool.next_action(lane)[...] = (rows + sequence * pool.shape.rollout_length + t) % 5
        pool.post_actions(lane)


def pids(pool):
    return list(pool._workers._pids)


def kill(pool, worker, number=signal.SIGKILL):
    """Sends a signal to the present process of the worker; returns False if there is none."""
    process = pool._workers._processes[worker]
    if process is None:
        return False
    signal.pidfd_send_signal(process.pidfd, number)
    return True


def copy(slot):
    names = (
        "observation",
        "is_first",
        "action",
        "reward",
        "terminated",
        "truncated",
        "valid",
        "incarnation",
        "stepped_at",
    )
    return {name: getattr(slot, name).copy() for name in names}


def collect(pool, num_slots, disturb=lambda pool, sequence: None, seconds=120.0):
    """Copies the next full slots, in order. `disturb` is called before each; fails after a time limit."""
    slots, deadline = [], time.monotonic() + seconds
    first = sequence = pool._next_lease
    disturb(pool, sequence)
    while sequence < first + num_slots:
        assert time.monotonic() < deadline, f"no slot {sequence} within {seconds} s"
        act(pool)
        if pool.acquire(0.0) is not None:
            slots.append(copy(pool.views[sequence % pool.shape.num_slots]))
            pool.release(sequence)
            sequence += 1
            disturb(pool, sequence)
    return slots


def joined(slots):
    """Joins slots into a long one: [N T (+ 1), B, ...]."""
    whole = {name: np.concatenate([slot[name] for slot in slots]) for name in slots[0] if name != "incarnation"}
    for name in ("observation", "is_first"):
        whole[name] = np.concatenate([*(slot[name][:-1] for slot in slots), slots[-1][name][-1:]])
    return whole


def broken_steps(whole):
    """Returns the steps that only mark a cut episode, [N T, B] bool."""
    return whole["truncated"] & ~whole["valid"]


def check(slots):
    """Fails unless every valid step is its environment's own, and every episode is complete or cut at its end.

    Returns:
        The numbers of valid steps and of cuts.
    """
    for before, after in itertools.pairwise(slots):
        np.testing.assert_array_equal(before["observation"][-1], after["observation"][0])
        np.testing.assert_array_equal(before["is_first"][-1], after["is_first"][0])
        assert (after["incarnation"] >= before["incarnation"]).all()
    whole = joined(slots)
    seen, then = whole["observation"][:-1], whole["observation"][1:]
    valid, first = whole["valid"], whole["is_first"][1:]
    # A step that counts goes on from what was shown, by the action that is recorded with it.
    np.testing.assert_array_equal(then[valid][:, ::3], seen[valid][:, ::3])
    np.testing.assert_array_equal(then[valid][:, 1], seen[valid][:, 1] + 1)
    np.testing.assert_array_equal(then[valid][:, 2], seen[valid][:, 2] + whole["action"][valid])
    np.testing.assert_array_equal(whole["reward"][valid], whole["action"][valid])
    # One that does not count begins an episode that nobody has seen.
    np.testing.assert_array_equal(first, ~valid)
    assert (then[first][:, 1:3] == 0).all()
    assert (whole["reward"][~valid] == 0).all()
    for row in range(valid.shape[1]):
        shown = np.concatenate([whole["observation"][:1, row], then[first[:, row], row]])
        identities = [tuple(identity) for identity in shown[:, ::3]]
        assert len(set(identities)) == len(identities), f"row {row} began an episode twice"
    cut = broken_steps(whole)
    ended = whole["terminated"] | whole["truncated"]
    length = slots[0]["valid"].shape[0]
    for t, row in np.argwhere(cut):
        if t % length:
            assert valid[t - 1, row]
            assert whole["truncated"][t - 1, row]
            assert not whole["terminated"][t - 1, row]
    # Nothing else ends by itself: a step that does not count follows an end, or is a cut, or follows one that begins.
    begins = np.argwhere(~valid & ~cut)
    for t, row in begins:
        assert t == 0 or ended[t - 1, row] or not valid[t - 1, row], f"row {row} lost an episode at step {t}"
    return int(valid.sum()), int(cut.sum())


def still_running(workers):
    """Returns the processes that run or are stopped."""
    return [pid for pid in workers if (Path("/proc") / str(pid)).exists() and state(pid) not in "ZX"]


def state(pid):
    """Returns the state of a process as one letter; X after its end."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


SHAPE = PoolShape(num_workers=2, lanes_per_worker=1, workers_per_lane=1, rows_per_part=3, rollout_length=8, num_slots=3)
