"""Makes docs/pictures from real runs: trains short PPO runs on CartPole, and shows them in every way there is. Minutes.

Run: python -m docs.make_pictures   (needs chromium for the web page; --runs DIR takes runs that an earlier call trained)
"""

import argparse
import io
import json
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import SVG_EXPORT_THEME

from docs import animations
from jaxsrl.metrics.live_state import RunInfo, initial_state, with_record
from jaxsrl.metrics.terminal_view import render_panel
from jaxsrl.plan.plan import plan_from_json
from jaxsrl.runs.summary import summarize
from tests.integration.headless_chromium import Page, chromium, find_chromium
from tests.support.metric_records import read_records

PICTURES = Path(__file__).parent / "pictures"
ENV_STEPS = 250_000
COLUMNS = 84
MOST_BYTES = 1_500_000
# name of the run, and the flags that make it what it is: two groups to compare.
RUNS = {f"ppo_seed{seed}": ["--run.seed", str(seed)] for seed in (0, 1, 2)} | {
    f"slow_seed{seed}": ["--run.seed", str(seed), "--agent.learning-rate", "1e-4"] for seed in (0, 1)
}
FEATURED = "ppo_seed1"
# file: (page, theme, width, height)
PAGES = {
    "view.png": (f"run/{FEATURED}", "light", 1280, 800),
    "view_runs.png": ("", "light", 1280, 800),
    "view_data_flow.png": (f"run/{FEATURED}/dataflow", "dark", 1280, 1240),
    "view_compare.png": ("compare?x=time", "dark", 1280, 800),
    "view_phone.png": (f"run/{FEATURED}", "light", 390, 780),
}


def main() -> None:
    """Trains what is not there yet, and makes all pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, default=Path("runs/pictures"), help="where the runs are, or will be")
    runs: Path = parser.parse_args().runs
    PICTURES.mkdir(exist_ok=True)
    for name, flags in RUNS.items():
        train(runs, name, flags)
    draw_terminal(runs / FEATURED, PICTURES / "terminal.svg")
    animations.write_gif(animations.terminal_frames(runs / FEATURED), PICTURES / "terminal.gif", frame_ms=250)
    animations.write_gif(
        animations.video_frames(PICTURES / "hide_and_seek_2v2.mp4", 300), PICTURES / "hide_and_seek.gif", 90
    )
    jaxsrl("plan", "experiments/ppo_cartpole.py", "--out", str(PICTURES / "plan.svg"))
    jaxsrl("plot", str(runs), "--out", str(PICTURES / "plot.png"))
    take_screenshots(runs)
    for path in sorted(PICTURES.glob("*.*")):
        size = path.stat().st_size
        print(f"{path.name}: {size:,} bytes{' - TOO LARGE' if size > MOST_BYTES else ''}")  # noqa: T201


def train(runs: Path, name: str, flags: list[str]) -> None:
    """Trains one run; one that is complete is left as it is."""
    if (runs / name).is_dir() and summarize(runs / name).state == "finished":
        return
    sizes = [
        "--run.total-env-steps",
        str(ENV_STEPS),
        "--metrics.interval-seconds",
        "0.5",
        "--eval.final-episodes",
        "20",
    ]
    sizes += ["--checkpoint.interval-updates", "20"]
    place = ["--run.directory", str(runs), "--run.name", name]
    subprocess.run([sys.executable, "experiments/ppo_cartpole.py", *place, *sizes, *flags], check=True, timeout=600)


def jaxsrl(*arguments: str) -> None:
    """One command, as a user types it."""
    subprocess.run([sys.executable, "-m", "jaxsrl.cli.main", *arguments], check=True, timeout=600)


def draw_terminal(run: Path, out: Path) -> None:
    """What the terminal showed when two thirds of the run were done."""
    plan = plan_from_json(json.loads((run / "plan.json").read_text()))
    records = read_records(run / "metrics.jsonl")
    state = initial_state(RunInfo("runs/ppo_cartpole_seed1", plan, ENV_STEPS, action_repeat=1))
    for record in records[: len(records) * 2 // 3]:
        state = with_record(state, record)
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(render_panel(state))
    svg = console.export_svg(title="jaxsrl train ppo_cartpole", theme=SVG_EXPORT_THEME, unique_id="jaxsrl")
    # Rich's SVG loads a font from elsewhere; any monospaced one does.
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL).replace("Fira Code, monospace", "monospace")
    out.write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n")


def take_screenshots(runs: Path) -> None:
    """The web page as headless Chromium shows it."""
    program = find_chromium()
    if program is None:
        sys.exit("there is no chromium on this machine, which takes pictures of the web page: apt-get install chromium")
    command = [sys.executable, "-m", "jaxsrl.cli.main", "view", str(runs), "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server, chromium(program) as browser:
        assert server.stdout is not None
        try:
            url = next(iter(re.findall(r"http://\S+", server.stdout.readline())))
            for name, (page, theme, width, height) in PAGES.items():
                tab = browser.open_page(width, height, theme, mobile=width < 500)
                tab.open(f"{url}#/{page}")
                wait_until_drawn(tab)
                tab.screenshot(PICTURES / name)
        finally:
            server.terminate()


def wait_until_drawn(tab: Page) -> None:
    """Until curves, or the plan with its shares, are there."""
    tab.wait_for("document.querySelector('.chart .series') || document.querySelector('.fragment[style*=level]')")
    tab.wait_for("!document.querySelector('main .empty:not([hidden])')")
    tab.js("Promise.all(document.getAnimations().map((one) => one.finished)).then(() => true)")  # colours that fade in


if __name__ == "__main__":
    main()
