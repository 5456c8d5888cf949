"""How figures look, and how they are saved. matplotlib is imported when something is drawn."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradpath.runtime.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# Told apart by people who do not see all colours (Okabe and Ito).
COLOURS = {"eap": "#7f7f7f", "eap-ig": "#0072b2", "eap-gp": "#d55e00", "clean-corrupted": "#cc79a7"}
SPARE = ("#009e73", "#e69f00", "#56b4e9", "#8c564b", "#9467bd")
MARKERS = {"eap": "s", "eap-ig": "o", "eap-gp": "^"}
SPARE_MARKERS = ("D", "v", "P", "X")  # the next one whenever the colours begin anew
LINES: dict[str, Any] = {
    "top": "-",
    "greedy": "--",
    "signed": "-.",
    "balanced": ":",
    "ratio": (0, (1, 1)),
    "stable": (0, (4, 1, 1, 1)),
    "refined": (0, (7, 1.5, 1, 1.5, 1, 1.5)),
    "exchanged": (0, (9, 2)),
}
TITLES = {
    "ioi": "IOI",
    "sva": "SVA",
    "gender-bias": "Gender-Bias",
    "capital-country": "Capital-Country",
    "hypernymy": "Hypernymy",
    "greater-than": "Greater-Than",
}
INK, MUTED, FAINT = "#1b1f26", "#656d79", "#dddbd5"

_STYLE = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "axes.grid": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "gradpath",  # the same figure gives the same file
}


def panels(rows: int, columns: int, size: tuple[float, float], **options: Any) -> tuple[Figure, list[Axes]]:
    """A figure and its axes, row by row."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(_STYLE):  # type: ignore[arg-type]
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False, **options)
    return figure, list(axes.flat)


def save(figure: Figure, stem: Path) -> list[Path]:
    """The figure as PNG and as SVG, without dates: the same figure gives the same bytes."""
    import matplotlib as mpl

    files = []
    with mpl.rc_context(_STYLE):  # type: ignore[arg-type]
        for suffix, about in (("png", {}), ("svg", {"Date": None})):
            content = BytesIO()
            figure.savefig(content, format=suffix, dpi=160, metadata=about)
            file = stem.with_name(f"{stem.name}.{suffix}")
            write_atomically(file, content.getvalue())
            files.append(file)
    return files


def colour(label: str, labels: list[str]) -> str:
    """A method's own colour; one with options gets a spare one."""
    if label in COLOURS:
        return COLOURS[label]
    return SPARE[_number(label, labels) % len(SPARE)]


def marker(label: str, labels: list[str]) -> str:
    """A method's own mark; those with the same spare colour have different ones."""
    if label in MARKERS:
        return MARKERS[label]
    return SPARE_MARKERS[_number(label, labels) // len(SPARE) % len(SPARE_MARKERS)]


def _number(label: str, labels: list[str]) -> int:
    """Which of the methods without a colour of its own this one is."""
    return [other for other in labels if other not in COLOURS].index(label) if label not in COLOURS else 0


def task_title(name: str) -> str:
    return TITLES.get(name, name)


def method_title(label: str) -> str:
    """``eap-gp+steps=10`` as EAP-GP, steps=10."""
    name, *options = label.split("+")
    return ", ".join([name.upper() if name.startswith("eap") else name, *options])
