"""A replay buffer as lists of steps: slow and simple, written independently of the real one's arithmetic."""

import dataclasses

import numpy as np

from agents.api import Trajectory


@dataclasses.dataclass
class Stream:
    """Random episodes of B rows, cut into slots: frame number i of a row is the number `row * 1000 + i`, in NEXT_STEP form."""

    rows: int
    steps: int
    frames: int = 1
    seed: int = 0
    end: float = 0.2
    remembers: bool = False
    before: int = 0  # steps of all rows before the first slot

    def __post_init__(self):
        self.rng = np.random.default_rng(self.seed)
        self.slots = []
        self.is_first = [np.ones(self.rows, bool)]
        self.flags = []  # (terminated, truncated, valid) a step
        self.time = 0
        for _ in range(self.before):
            self.step()

    def frame(self, time):
        return (np.arange(self.rows) * 1000 + time).astype(np.float32)

    def stack(self, time):
        """Returns an agent's observation, [B, F]: frames of the episode, its first repeated."""
        seen = np.zeros((self.rows, self.frames), np.float32)
        for row in range(self.rows):
            begin = max(t for t in range(time + 1) if self.is_first[t][row])
            for age in range(self.frames):
                seen[row, self.frames - 1 - age] = self.frame(max(time - age, begin))[row]
        return seen

    def step(self):
        ended = self.flags[-1][0] | self.flags[-1][1] if self.flags else np.zeros(self.rows, bool)
        ends = (self.rng.random(self.rows) < self.end) & ~ended
        terminated = ends & (self.rng.random(self.rows) < 0.5)
        self.flags.append((terminated, ends & ~terminated, ~ended))
        self.is_first.append(ended)
        self.time += 1

    def slot(self):
        """Returns the next T steps of all rows, in the form of the bridge."""
        begin = self.time
        for _ in range(self.steps):
            self.step()
        history = self.stack(begin)[:, :-1].T if self.frames > 1 else np.zeros((0, self.rows))
        frames = np.concatenate([history, [self.frame(t) for t in range(begin, self.time + 1)]]).astype(np.float32)
        flags = [np.stack(kind) for kind in zip(*self.flags[begin:], strict=True)]
        numbers = np.stack([self.frame(t) for t in range(begin, self.time)])
        is_first = np.concatenate([np.zeros((self.frames - 1, self.rows), bool), self.is_first[begin:]])
        slot = Trajectory(
            observation={"image": frames, "plain": frames[self.frames - 1 :]},
            is_first=is_first,
            action=np.asarray(numbers.astype(np.int32)),
            reward=numbers,
            terminated=flags[0],
            truncated=flags[1],
            valid=flags[2],
            policy_version=np.asarray(np.full((self.steps, self.rows), len(self.slots), np.int32)),
            extras={"value": numbers * 2},
            agent_state=((np.arange(self.rows)[:, None] * 1000.0 + begin).astype(np.float32),)
            if self.remembers
            else (),
        )
        self.slots.append(slot)
        return slot

    def check(self, window, row, begin, length):
        """Compares one row of gathered windows, [.., ...] numpy arrays, with the steps from `begin` on."""
        numbers = row * 1000 + np.arange(begin, begin + length + 1)
        np.testing.assert_array_equal(window.action, numbers[:-1])
        np.testing.assert_array_equal(window.reward, numbers[:-1])
        np.testing.assert_array_equal(window.extras["value"], 2 * numbers[:-1])
        slots = np.arange(begin - self.before, begin - self.before + length) // self.steps
        np.testing.assert_array_equal(window.policy_version, slots)
        np.testing.assert_array_equal(window.observation["plain"], numbers)
        for place, name in enumerate(("terminated", "truncated", "valid")):
            flags = [self.flags[time][place][row] for time in range(begin, begin + length)]
            np.testing.assert_array_equal(getattr(window, name), flags)
        first = [self.is_first[time][row] for time in range(begin, begin + length + 1)]
        np.testing.assert_array_equal(window.is_first[self.frames - 1 :], first)
        for after in range(length + 1):
            self._check_stack(window, row, begin, after)
        if self.remembers:
            assert window.agent_state[0][0] == row * 1000 + self.before + slots[0] * self.steps

    def _check_stack(self, window, row, begin, after):
        """Compares the newest F frames at this place of the window; only flags within the window mark a first frame."""
        frames = window.observation["image"][after : after + self.frames].copy()
        flags = window.is_first[after : after + self.frames]
        for age in range(self.frames - 2, -1, -1):
            place = self.frames - 1 - age
            if flags[place]:
                frames[:place] = frames[place]
        np.testing.assert_array_equal(frames, self.stack(begin + after)[row])

    def begins(self, sizes):
        """Returns {(first step, group)} of all windows that can be drawn."""
        found = set()
        # The frames before a window's first are in the ring too; those before the first step of all are always there.
        oldest = max(self.before, self.time - sizes.ring_steps + self.frames - 1)
        for begin in range(self.before, self.time, sizes.stride):
            if begin + sizes.window_steps > self.time or begin < oldest:
                continue
            for group in range(sizes.num_groups):
                rows = slice(group * sizes.agents_per_window, (group + 1) * sizes.agents_per_window)
                first, valid = self.is_first[begin][rows], self.flags[begin][2][rows]
                if sizes.window_start == "any" or (first.any() and (first | ~valid).all()):
                    found.add((begin, group))
        return found
