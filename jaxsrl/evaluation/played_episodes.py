"""Episodes that an evaluation plays: which have finished, and which the limit of steps has cut."""

from collections.abc import Callable, Sequence

import numpy as np

from envpool_bridge.envs.protocol import EnvRows, StepRows
from jaxsrl.evaluation.player import RowsPlayer


class PlayedEpisodes:
    """Results of the episodes of several environments, which together play a number of episodes each.

    An environment that reaches the limit idles until the others have played theirs or idle as well. Then all start again, each
    with its next episode.

    Args:
        wanted: episodes of each environment.
        num_rows: rows of all environments, those of an environment adjacent.
        limit: env steps after which an episode is cut; None for no limit.

    Attributes:
        finished: return and length of each row's episodes, by the number of the environment's episode; without those that the
            row's agent missed.
        num_cut: episodes that were cut.
        infos: Values of each info field at the ends of all counted episodes, one for each agent.
    """

    def __init__(self, wanted: Sequence[int], num_rows: int, limit: int | None) -> None:
        self.finished: list[dict[int, tuple[float, int]]] = [{} for _ in range(num_rows)]
        self.num_cut = 0
        self.infos: dict[str, list[float]] = {}
        self._wanted, self._limit, self._agents = wanted, limit, num_rows // len(wanted)
        self._episode = np.zeros(len(wanted), int)  # number of each environment's present one
        self._steps = np.zeros(len(wanted), int)  # of it
        self._is_cut = np.zeros(len(wanted), bool)
        self._total, self._length = np.zeros(num_rows), np.zeros(num_rows, int)

    def play(self, player: RowsPlayer, rows: EnvRows, on_step: Callable[[int], None]) -> None:
        """Plays until each environment has played its episodes; calls `on_step` with their number after each step."""
        player.start(rows)
        while not all(map(self._is_done, range(len(self._wanted)))):
            if all(self._is_cut[env] or self._is_done(env) for env in range(len(self._wanted))):
                self._start_again(player, rows)
            self._add(player.step(rows))
            on_step(sum(min(int(played), most) for played, most in zip(self._episode, self._wanted, strict=True)))

    def _is_done(self, env: int) -> bool:
        """Returns whether an environment has played its episodes; a reset ends the episode of absent agents."""
        number = int(self._episode[env])
        has_ended = all(number in episodes for episodes in self.finished[self._rows_of(env)])
        return number + (has_ended or bool(self._is_cut[env])) >= self._wanted[env]

    def _start_again(self, player: RowsPlayer, rows: EnvRows) -> None:
        # An environment that has played all of its episodes plays one more, which does not count.
        self._episode += [cut or self._is_done(env) for env, cut in enumerate(self._is_cut)]
        self._is_cut[:], self._steps[:] = False, 0
        self._total[:], self._length[:] = 0.0, 0
        player.start(rows, np.repeat(self._episode, self._agents).tolist())

    def _add(self, out: StepRows) -> None:
        plays = ~np.repeat(self._is_cut, self._agents)
        self._total += out.reward * plays
        self._length += out.valid & plays
        for row in np.flatnonzero((out.terminated | out.truncated) & plays).tolist():
            if self._episode[row // self._agents] < self._wanted[row // self._agents]:
                for name, values in out.infos.items():
                    self.infos.setdefault(name, []).append(float(values[row]))
            self._finish(row)
        starts = (out.is_first & ~out.valid).reshape(len(self._wanted), self._agents).all(1) & ~self._is_cut
        self._episode += starts
        self._steps = np.where(starts, 0, self._steps + 1)
        for env in np.flatnonzero(self._steps == self._limit) if self._limit is not None else ():
            self._cut(int(env))

    def _finish(self, row: int) -> None:
        """Adds what a row has collected to its present episode: all of it, or what an agent that came back adds."""
        episodes, number = self.finished[row], int(self._episode[row // self._agents])
        total, length = episodes.get(number, (0.0, 0))
        episodes[number] = total + float(self._total[row]), length + int(self._length[row])
        self._total[row], self._length[row] = 0.0, 0

    def _cut(self, env: int) -> None:
        """Ends the environment's episode, unless it has ended at this step or all have been played."""
        rows = range(env * self._agents, (env + 1) * self._agents)
        number = int(self._episode[env])
        if number >= self._wanted[env] or all(number in self.finished[row] for row in rows):
            return
        for row in rows:
            if self._length[row]:
                self._finish(row)
        self._is_cut[env] = True
        self.num_cut += 1

    def _rows_of(self, env: int) -> slice:
        return slice(env * self._agents, (env + 1) * self._agents)
