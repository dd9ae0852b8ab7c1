"""Records as plain lines, for output without a terminal."""

from jaxsrl.metrics.live_state import RunState, seconds_left
from jaxsrl.metrics.terminal_view import failures
from jaxsrl.terminal.format import format_duration, format_number


def plain_line(state: RunState) -> str:
    """Returns the newest record as one line, without unknown values."""
    values = state.values
    parts = [f"{state.progress:4.0%}", f"{state.env_steps:,} env steps"]
    if "episode/return_mean" in values:
        parts.append(f"return {format_number(values['episode/return_mean'])}")
    speed, repeat = values.get("speed/env_steps_per_second", 0.0), state.facts.action_repeat
    frames = f" ({speed * repeat:,.0f} frames/s)" if repeat > 1 else ""
    parts.append(f"{speed:,.0f} env steps/s{frames}")
    parts.append(f"lag {values.get('policy/lag_max', 0.0):.0f}")
    waits = [
        f"{fragment.name} {values[f'utilization/{fragment.name}/wait']:.0%}"
        for fragment in state.facts.plan.fragments
        if f"utilization/{fragment.name}/wait" in values
    ]
    if waits:
        parts.append("waits: " + ", ".join(waits))
    parts += [text for _, text in failures(values)]
    left = seconds_left(state)
    if left:
        parts.append(f"{format_duration(left)} left")
    return " | ".join(parts)
