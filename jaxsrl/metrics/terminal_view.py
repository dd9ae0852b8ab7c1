"""Live view of a run for terminals of at least 60 columns, light or dark, with or without Unicode. Renders without a terminal."""

from collections.abc import Callable, Iterator

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from agents.ops.popart import LARGEST_DEVIATION
from jaxsrl.metrics.live_state import RunState, seconds_left
from jaxsrl.metrics.utilization import wait_reason
from jaxsrl.plan.fragment import Fragment
from jaxsrl.terminal.format import format_duration, format_number
from jaxsrl.terminal.sparkline import lengths, sparkline

_MAX_WIDTH, _LABEL, _SHARE = 100, 19, 6
# Colors of the terminal's palette that are readable on black and on white; failures are also described in text.
_BUSY, _WAITS, _FAINT, _BAD = "cyan", "dim cyan", "dim", "bold red"


class RunPanel:
    """Rich renderable of a run's state, which is read at each rendering.

    Print it with a `rich.console.Console`; one with `record=True` exports it as SVG.

    Args:
        state: returns the current state.
        age_seconds: returns the age of its newest record.
    """

    def __init__(self, state: Callable[[], RunState], age_seconds: Callable[[], float] = lambda: 0.0) -> None:
        self._state, self._age = state, age_seconds

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yields the lines, as wide as the console."""
        page = _Page(self._state(), self._age(), min(options.max_width, _MAX_WIDTH), not options.ascii_only)
        for line in page.lines():
            line.no_wrap, line.overflow = True, "crop"
            yield line


def render_panel(state: RunState) -> RunPanel:
    """Returns the view of one fixed state."""
    return RunPanel(lambda: state)


class _Page:
    """One rendering of a state."""

    def __init__(self, state: RunState, age_seconds: float, width: int, unicode: bool) -> None:
        self._state, self._age, self._width, self._unicode = state, age_seconds, width, unicode
        self._values = state.values

    def lines(self) -> Iterator[Text]:
        """Yields the lines; their order and places stay the same until something fails."""
        plan = self._state.facts.plan
        yield Text.assemble((self._safe(self._state.facts.title), "bold"), (f"  {self._safe(plan.name)}", _FAINT))
        yield Text()
        yield from self._progress()
        yield from self._returns()
        yield from self._evaluation()
        yield self._speed()
        yield Text()
        yield from self._fragments()
        yield Text()
        yield self._row("policy lag", *self._lag())
        yield self._row("checkpoint", *self._checkpoint())
        for label, text in failures(self._values):
            yield self._row(label, (text, _BAD))

    def _progress(self) -> Iterator[Text]:
        state = self._state
        left, total = seconds_left(state), state.facts.total_env_steps
        share = f" {state.progress:4.0%}  "
        when = "complete" if left == 0.0 else f"{format_duration(left - self._age)} left" if left is not None else ""
        room = max(10, self._width - _LABEL - len(share) - 18)
        yield self._row("progress", *self._bar(("full", state.progress, _BUSY), width=room), (share, "bold"), when)
        seconds = (state.record.wall_seconds if state.record is not None else 0.0) + self._age
        update = state.record.update if state.record is not None else state.facts.first_update
        steps = f"{state.env_steps:,} of {total:,} {state.facts.step_unit}, update {update:,}, after {format_duration(seconds)}"
        yield self._row("", (steps, _FAINT))

    def _evaluation(self) -> Iterator[Text]:
        newest, best = self._state.evaluation, self._state.best_evaluation
        if newest is None or best is None:
            return
        value = format_number(newest.mean_return)
        where = f"  best {format_number(best.mean_return)}; {newest.mode}, at {newest.env_steps:,} env steps  "
        room = max(0, self._width - _LABEL - len(value) - len(where))
        curve = sparkline(self._state.evaluation_curve, min(room, 40), self._unicode)
        yield self._row("evaluation return", (value, "bold"), (where, _FAINT), (curve, _BUSY))

    def _returns(self) -> Iterator[Text]:
        state, values = self._state, self._values
        if "episode/return_mean" not in values:
            yield self._row("training return", ("no episode has ended yet", _FAINT))
            yield Text()
            return
        mean = format_number(values["episode/return_mean"])
        best = f"  best {format_number(state.best_return or 0.0)}  " if state.best_return is not None else "  "
        room = self._width - _LABEL - len(mean) - len(best)
        curve = sparkline(state.curve, min(room, 40), self._unicode)
        yield self._row("training return", (mean, "bold"), (best, _FAINT), (curve, _BUSY))
        episodes = f"mean of the last 100 of {values.get('episode/count', 0.0):,.0f} episodes"
        if "episode/length_mean" in values:
            episodes += f", {format_number(values['episode/length_mean'])} env steps long"
        yield self._row("", (episodes, _FAINT))

    def _speed(self) -> Text:
        speed, repeat = self._values.get("speed/env_steps_per_second", 0.0), self._state.facts.action_repeat
        frames = f"  {speed * repeat:,.0f} frames/s" if repeat > 1 else ""
        return self._row("speed", (f"{speed:,.0f} {self._state.facts.step_unit}/s", "bold"), frames)

    def _fragments(self) -> Iterator[Text]:
        """Yields one line per fragment: its name, a bar, its busy and wait share, and the reason for waiting."""
        width = self._bar_width()
        head = " " * (_LABEL + width) + f"{'busy':>{_SHARE}}{'waits':>{_SHARE + 1}}  for"
        yield Text.assemble(("where time goes", "bold"), (head[len("where time goes") :], _FAINT))
        for fragment in self._state.facts.plan.fragments:
            yield self._fragment(fragment, width)

    def _bar_width(self) -> int:
        reason = max(len(wait_reason(self._state.facts.plan, one.name)) for one in self._state.facts.plan.fragments)
        return max(8, self._width - _LABEL - 2 * _SHARE - 3 - reason)

    def _fragment(self, fragment: Fragment, width: int) -> Text:
        busy = self._values.get(f"utilization/{fragment.name}/busy")
        waits = self._values.get(f"utilization/{fragment.name}/wait")
        name = f"{self._safe(fragment.name)[: _LABEL - 1]:<{_LABEL}}"
        line = Text.assemble((name, _FAINT))
        for text, style in self._bar(("full", busy or 0.0, _BUSY), ("half", waits or 0.0, _WAITS), width=width):
            line.append(text, style)
        line.append(f"{self._percent(busy):>{_SHARE}}", "bold")
        line.append(f"{self._percent(waits):>{_SHARE + 1}}")
        if waits is not None:
            line.append("  " + wait_reason(self._state.facts.plan, fragment.name), _FAINT)
        elif busy is None:
            line.append("  not known" if self._values else "  starting", _FAINT)
        return line

    def _lag(self) -> tuple[str, ...]:
        mean, most = self._values.get("policy/lag_mean", 0.0), self._values.get("policy/lag_max", 0.0)
        return (f"{mean:.2f} updates mean, {most:.0f} max",)

    def _checkpoint(self) -> tuple[str, ...]:
        state, update = self._state, self._values.get("checkpoint/update", 0.0)
        if not update:
            return ("none yet",)
        if state.checkpoint_at is None or state.record is None:
            return (f"update {update:,.0f}",)
        ago = state.record.wall_seconds - state.checkpoint_at + self._age
        return (f"update {update:,.0f}, {format_duration(ago)} ago",)

    def _row(self, label: str, *parts: str | tuple[str, str]) -> Text:
        return Text.assemble((f"{label:<{_LABEL}}", _FAINT), *parts)

    def _bar(self, *parts: tuple[str, float, str], width: int) -> list[tuple[str, str]]:
        """Returns each part in its glyph, and dots for the rest."""
        glyphs = {"full": "█", "half": "░", "": "·"} if self._unicode else {"full": "#", "half": "-", "": "."}
        sizes = lengths([share for _, share, _ in parts], width)
        bars = [(glyphs[kind] * size, style) for (kind, _, style), size in zip(parts, sizes, strict=True)]
        return [*bars, (glyphs[""] * (width - sum(sizes)), _FAINT)]

    @staticmethod
    def _percent(share: float | None) -> str:
        return "" if share is None else f"{share:.0%}"

    def _safe(self, text: str) -> str:
        return text if self._unicode else text.encode("ascii", "replace").decode()


def failures(values: dict[str, float]) -> Iterator[tuple[str, str]]:
    """Yields (label, text) of each kind of failure that a record counts, since the start of the process."""

    def count(name: str) -> int:
        return int(values.get(name, 0.0))

    restarts, hangs, cut = (count(f"env/{name}_total") for name in ("restarts", "hangs", "truncated_by_failure"))
    if restarts or cut:
        hung = f" ({hangs} had hung)" if hangs else ""
        yield "workers", f"{restarts} restarted{hung}, {cut} episodes cut"
    if count("env/disabled_rows"):
        yield "rows", f"{count('env/disabled_rows')} are no longer stepped"
    if count("env/repaired_outputs_total"):
        yield "repaired", f"{count('env/repaired_outputs_total'):,} outputs of environments were not as declared"
    if count("learner/nonfinite_updates_total"):
        yield "skipped", f"{count('learner/nonfinite_updates_total')} updates were not finite"
    clamped = max((value for name, value in values.items() if name.endswith("value/clamped_fraction")), default=0.0)
    if clamped >= 0.005:
        yield (
            "clamped",
            f"{clamped:.0%} of value targets exceed the agent's range (v_min, v_max, value_limit, or Dreamer's atoms)",
        )
    if any(name.endswith("value/deviation") and value >= LARGEST_DEVIATION for name, value in values.items()):
        yield (
            "diverged",
            "value targets grow without bound: use value_normalization popart, a smaller discount or learning rate",
        )
    if count("checkpoint/failed_saves_total"):
        yield "unsaved", f"{count('checkpoint/failed_saves_total')} checkpoints could not be written"
    if count("metrics/dropped_records_total"):
        yield "records", f"{count('metrics/dropped_records_total')} dropped by a sink"
