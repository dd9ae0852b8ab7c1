"""Heat map of the payoffs between policies."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from jaxsrl.plots.style import save, style


def draw_payoffs(names: Sequence[str], share: np.ndarray, path: Path) -> None:
    """Draws the points per game of each row's policy against each column's.

    Args:
        names: Names of P policies, in the order of rows and columns.
        share: [P, P] in [0, 1]; NaN where a pair has no games.
        path: file to write, .png, .svg or .pdf.

    Raises:
        UserError: If the file has another suffix, or cannot be written.
    """
    size = 2.5 + 0.55 * len(names)
    with style():
        figure = Figure(figsize=(size + 1.0, size), layout="constrained")
        axes = figure.subplots()
        image = axes.imshow(share, cmap="RdBu", vmin=0.0, vmax=1.0)
        axes.set_xticks(range(len(names)), names, rotation=45, ha="right")
        axes.set_yticks(range(len(names)), names)
        axes.set_xlabel("against")
        for row, column in np.argwhere(np.isfinite(share)):
            dark = abs(share[row, column] - 0.5) > 0.3
            text = f"{share[row, column]:.2f}"
            axes.text(column, row, text, ha="center", va="center", fontsize=8, color="white" if dark else "black")
        figure.colorbar(image, label="points per game")
        save(figure, path)
