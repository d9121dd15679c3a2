"""The loss curve as a picture."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.errors import AmpError
from ..core.files import whole_file
from ..core.installing import pip_install

KINDS = (".png", ".svg", ".pdf")
WINDOW = 50  # of how many points a smoothed curve consists at least


def check_plot(path: str | os.PathLike[str]) -> None:
    """Raises AmpError AMP501 without matplotlib, AMP105 for a place or a name that cannot be."""
    _matplotlib()
    place = Path(path)
    if place.suffix.lower() not in KINDS:
        raise AmpError("AMP105", "a loss curve is a .png, .svg or .pdf file", where=str(path), hint="--plot loss.png")
    if not place.parent.is_dir() or place.is_dir():
        raise AmpError("AMP105", "no file can be written there", where=str(path), hint="name a file in a folder")


def draw_losses(
    path: str | os.PathLike[str],
    losses: NDArray[np.float64],
    finite: NDArray[np.bool_],
    validation: Sequence[tuple[int, float]],
) -> None:
    """Draws the loss of every step, a running mean of it, and validation losses at their steps. Whole or not at all."""
    matplotlib = _matplotlib()
    from matplotlib.figure import Figure

    place = Path(path)
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    steps = np.arange(1, len(losses) + 1)[finite]
    shown = losses[finite]
    axes.plot(steps, shown, color="0.75", linewidth=0.8, label="loss of a step")
    width = max(1, len(shown) // WINDOW)
    if len(shown) >= width > 1:
        smooth = np.convolve(shown.astype(np.float64), np.ones(width) / width, "valid")
        axes.plot(steps[width - 1 :], smooth, color="tab:blue", label=f"mean of {width}")
    if validation:
        axes.plot(*zip(*validation, strict=True), "o-", color="tab:orange", label="validation")
    axes.set_xlabel("step")
    axes.set_ylabel("loss")
    axes.legend()
    with matplotlib.rc_context({"svg.hashsalt": "ampgraph"}), whole_file(place, "--plot") as temporary:
        kind = place.suffix.lower()
        figure.savefig(temporary, format=kind[1:], metadata=_dateless(kind))


def _dateless(suffix: str) -> dict[str, Any]:
    """The same losses give the same bytes."""
    return {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(suffix, {})


def _matplotlib() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise AmpError("AMP501", "matplotlib is not installed", hint=pip_install("plot")) from error
    return matplotlib
