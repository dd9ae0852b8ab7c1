"""Makes the animated pictures of README.md from a run's records and from a video of an agent.

Run: python -m docs.animations terminal RUN OUT.gif
     python -m docs.animations video VIDEO.mp4 OUT.gif --width 280
"""

import argparse
import json
from pathlib import Path

import imageio.v3
from PIL import Image, ImageDraw, ImageFont
from rich.color_triplet import ColorTriplet
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from rich.terminal_theme import DIMMED_MONOKAI, TerminalTheme

from jaxsrl.metrics.live_state import RunInfo, initial_state, with_record
from jaxsrl.metrics.record_file import parse_record
from jaxsrl.metrics.sinks import Record
from jaxsrl.metrics.terminal_view import render_panel
from jaxsrl.plan.plan import plan_from_json

COLUMNS, FONT_SIZE, LINE_HEIGHT, MARGIN = 80, 14, 18, 14
FONTS = Path("/usr/share/fonts/truetype/dejavu")
LAST_FRAME_MS = 2500
MAX_BYTES = 1_500_000
COLORS = 128


def main() -> None:
    """Makes one animation as the command line asks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("terminal", "video"))
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--width", type=int, default=280)
    parser.add_argument("--frame-ms", type=int, default=90)
    parser.add_argument("--every", type=int, default=1, help="keep every Nth frame")
    given = parser.parse_args()
    frames = terminal_frames(given.source) if given.kind == "terminal" else video_frames(given.source, given.width)
    frames = frames[:: given.every]
    write_gif(frames, given.out, given.frame_ms)
    size = given.out.stat().st_size
    print(f"{given.out}: {len(frames)} frames, {size:,} bytes{' - TOO LARGE' if size > MAX_BYTES else ''}")  # noqa: T201


def terminal_frames(run: Path) -> list[Image.Image]:
    """Returns what the terminal showed after each record of a run."""
    plan = plan_from_json(json.loads((run / "plan.json").read_text()))
    records = read_run(run / "metrics.jsonl")
    state = initial_state(RunInfo(f"runs/{run.name}", plan, records[-1].env_steps, action_repeat=1))
    console = Console(width=COLUMNS, force_terminal=True, color_system="truecolor")
    screens = []
    for record in records:
        state = with_record(state, record)
        screens.append(console.render_lines(render_panel(state), console.options.update(width=COLUMNS), pad=False))
    height = max(len(lines) for lines in screens)
    return [draw_screen(lines, height) for lines in screens]


def read_run(path: Path) -> list[Record]:
    """Returns the records of a run in their order."""
    parsed = [parse_record(line)[0] for line in path.read_bytes().splitlines()]
    return [make_record(values) for values in parsed if values is not None]


def make_record(values: dict[str, float]) -> Record:
    """Returns one record from its numbers by name."""
    counts = {name: int(values[name]) for name in ("update", "env_steps", "frames")}
    others = {name: value for name, value in values.items() if name not in {*counts, "wall_seconds"}}
    return Record(**counts, wall_seconds=values["wall_seconds"], values=others)


def draw_screen(lines: list[list[Segment]], height: int, theme: TerminalTheme = DIMMED_MONOKAI) -> Image.Image:
    """Returns a picture of a terminal's lines, below the command that started the run.

    Args:
        lines: styled text.
        height: Height of the screen in lines.
        theme: colors of the terminal.
    """
    regular = ImageFont.truetype(str(FONTS / "DejaVuSansMono.ttf"), FONT_SIZE)
    bold = ImageFont.truetype(str(FONTS / "DejaVuSansMono-Bold.ttf"), FONT_SIZE)
    cell = regular.getlength("x")
    size = (round(COLUMNS * cell) + 2 * MARGIN, (height + 2) * LINE_HEIGHT + 2 * MARGIN)
    image = Image.new("RGB", size, tuple(theme.background_color))
    draw = ImageDraw.Draw(image)
    command = [Segment("$ jaxsrl train ppo_cartpole", Style(bold=True))]
    for row, line in enumerate([command, [], *lines]):
        column = 0
        for text, style, _ in line:
            place = (MARGIN + column * cell, MARGIN + row * LINE_HEIGHT)
            font = bold if style and style.bold else regular
            draw.text(place, text, fill=tuple(text_color(style, theme)), font=font)
            column += len(text)
    return image


def text_color(style: Style | None, theme: TerminalTheme) -> ColorTriplet:
    """Returns the color of a text; dim text is half way to the background."""
    color = theme.foreground_color if style is None or style.color is None else style.color.get_truecolor(theme)
    if style is None or not style.dim:
        return color
    return ColorTriplet(*((a + b) // 2 for a, b in zip(color, theme.background_color, strict=True)))


def video_frames(video: Path, width: int) -> list[Image.Image]:
    """Returns the frames of a video at a width in pixels."""
    frames = [Image.fromarray(frame) for frame in imageio.v3.imiter(video, plugin="FFMPEG")]
    return [
        frame.resize((width, round(frame.height * width / frame.width)), Image.Resampling.LANCZOS) for frame in frames
    ]


def write_gif(frames: list[Image.Image], out: Path, frame_ms: int) -> None:
    """Writes frames as an endless animation; all share one palette, so that pixels that stay the same cost nothing."""
    samples = frames[:: max(1, len(frames) // 6)]
    sheet = Image.new("RGB", (samples[0].width, sum(sample.height for sample in samples)))
    for index, sample in enumerate(samples):
        sheet.paste(sample, (0, index * sample.height))
    palette = sheet.quantize(COLORS, method=Image.Quantize.MAXCOVERAGE)
    first, *others = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    durations = [frame_ms] * len(others) + [LAST_FRAME_MS]
    first.save(out, save_all=True, append_images=others, duration=durations, loop=0, optimize=True)


if __name__ == "__main__":
    main()
