"""Style of figures: one palette, one axis style, identical bytes for identical data."""

# matplotlib's types are incomplete:
# pyright: reportUnknownMemberType=false, reportArgumentType=false

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from envpool_bridge.errors import UserError

# Palette of Okabe and Ito, distinguishable by color-blind readers, without yellow, which is too light on white.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#222222")
LINES = ("-", "--", ":", "-.")
INK, FAINT = "#222222", "#6b6b6b"
KINDS = ("png", "svg", "pdf")
_STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "svg.hashsalt": "jaxsrl",
    "svg.fonttype": "path",
    "pdf.fonttype": 42,
}


def validate_out(path: Path) -> str:
    """Returns the figure format of a file's suffix.

    Raises:
        UserError: If the suffix is not .png, .svg or .pdf, or the directory does not exist.
    """
    kind = path.suffix.removeprefix(".").lower()
    if kind not in KINDS:
        raise UserError(f"a plot is written as .png, .svg or .pdf: got {path}; choose plot.svg, say")
    if not path.parent.is_dir():
        raise UserError(f"cannot write {path}: there is no directory {path.parent}; make it, or choose another file")
    return kind


def style() -> Any:
    """Returns a context in which figures have the house style."""
    return matplotlib.rc_context(_STYLE)


def save(figure: Figure, path: Path) -> None:
    """Writes the figure without a date, so that the same figure gives the same file.

    Raises:
        UserError: see `validate_out`; or the file cannot be written.
    """
    kind = validate_out(path)
    metadata = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}[kind]
    FigureCanvasAgg(figure)
    try:
        figure.savefig(path, format=kind, metadata=metadata, facecolor="white", dpi=150)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; choose another file") from error


def clean_axes(axes: Axes) -> None:
    """Removes the frame and adds a light grid."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)


def count_axis(axes: Axes) -> None:
    """Formats large numbers on x as 100 k and 1.5 M."""
    axes.xaxis.set_major_formatter(EngFormatter(sep=" "))
    axes.xaxis.set_major_locator(MaxNLocator(6))


def color(number: int) -> str:
    """Returns the color of a method by its index."""
    return COLORS[number % len(COLORS)]


def line(number: int) -> str:
    """Returns the line style of a method by its index; it changes when the colors repeat."""
    return LINES[number // len(COLORS) % len(LINES)]
