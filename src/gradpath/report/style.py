"""The one style of all figures, and how they are saved. matplotlib is imported when something is drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradpath.defaults import PAPER_GP
from gradpath.runtime.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Methods. The palette is that of Okabe and Ito, which colour-blind readers can tell apart; ``formats.edges`` has the
# colours of edges.
METHOD_COLOURS = {"eap": "#7f7f7f", "eap-ig": "#0072b2", "eap-gp": "#d55e00", "clean-corrupted": "#cc79a7"}
METHOD_COLOURS[PAPER_GP] = "#e69f00"
SPARE = ("#009e73", "#56b4e9", "#8c564b", "#9467bd")
MARKERS = {"eap": "s", "eap-ig": "o", "eap-gp": "^", PAPER_GP: "v"}
SPARE_MARKERS = ("D", "P", "X")  # the next one each time the spare colours repeat
INK, MUTED, FAINT = "#1b1f26", "#656d79", "#dddbd5"
BLUE, GREY, PAPER = "#2a5bd7", "#9aa1ab", "#f3f2ee"
LINES: dict[str, Any] = {"top": "-", "greedy": "--", "signed": "-."}
LINES["refined"] = (0, (7, 1.5, 1, 1.5, 1, 1.5))
LINES["learned"] = (0, (2, 1))
TITLES = {name: name.title() for name in ("gender-bias", "capital-country", "hypernymy", "greater-than")}
TITLES |= {"ioi": "IOI", "sva": "SVA"}

_STYLE: Any = {
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
    "pdf.fonttype": 42,
    "svg.hashsalt": "gradpath",  # the same figure gives the same file
}
_UNDATED = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}


FORMULA = "formula"  # the label of a text whose dollar signs enclose a formula


def styled() -> AbstractContextManager[None]:
    """A context in which matplotlib makes and saves figures in this style."""
    import matplotlib as mpl

    return mpl.rc_context(_STYLE)


def panels(rows: int, columns: int, size: tuple[float, float], **options: Any) -> tuple[Figure, list[Axes]]:
    """A figure of this width and height in inches, and its axes row by row; options are those of ``subplots``."""
    from matplotlib.figure import Figure

    with styled():
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False, **options)
    return figure, list(axes.flat)


def tiled(
    n: int, size: tuple[float, float], margin: tuple[float, float], columns: int = 3
) -> tuple[Figure, list[Axes], int]:
    """A figure of n panels in up to so many columns, the others hidden. Returns the number of columns, too."""
    columns = min(columns, n)
    lines = -(-n // columns)
    figure, axes = panels(lines, columns, (size[0] * columns + margin[0], size[1] * lines + margin[1]))
    for ax in axes[n:]:
        ax.set_visible(False)
    return figure, axes, columns


def fit(ax: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    """Fit the axis to the curves, not to their intervals, which are very wide for circuits of a few edges."""
    values = [100 * row["faithfulness"] for row in rows]
    low, high = min(0.0, *values), max(105.0, *values)
    room = 0.06 * (high - low)
    ax.set_ylim(low - room, high + room)


def canvas(size: tuple[float, float], part: tuple[float, float] = (1.0, 1.0)) -> tuple[Figure, Axes]:
    """A figure with axes that show nothing of themselves, for drawings.

    ``size`` is in inches; ``part`` is what the axes take of the width and the height, from the lower left corner.
    """
    from matplotlib.figure import Figure

    with styled():
        figure = Figure(figsize=size)
        axes = figure.add_axes((0, 0, *part))
    axes.set_axis_off()
    return figure, axes


def save(figure: Figure, stem: Path) -> list[Path]:
    """Save a figure as PNG and SVG; ``stem`` is the path of both files without their suffixes."""
    files = [stem.with_name(f"{stem.name}.{suffix}") for suffix in ("png", "svg")]
    for file in files:
        save_as(figure, file)
    return files


def save_as(figure: Figure, file: Path, dpi: int = 160) -> None:
    """Save a figure as PNG, SVG or PDF, by the suffix of the file. The same figure gives the same bytes."""
    from matplotlib.text import Text

    content, suffix = BytesIO(), file.suffix.lower()[1:]
    for text in figure.findobj(Text):
        if text.get_label() != FORMULA:  # a task or a model may be called "$x"
            text.set_parse_math(False)
    with styled():
        figure.savefig(content, format=suffix, dpi=dpi, metadata=_UNDATED.get(suffix))
    write_atomically(file, content.getvalue())


def colour(label: str, labels: list[str]) -> str:
    """The colour of a method; methods without a fixed one get the spare colours in turn."""
    return METHOD_COLOURS.get(label) or SPARE[_spare_index(label, labels) % len(SPARE)]


def marker(label: str, labels: list[str]) -> str:
    """The marker of a method; methods that share a spare colour get different ones."""
    return MARKERS.get(label) or SPARE_MARKERS[_spare_index(label, labels) // len(SPARE) % len(SPARE_MARKERS)]


def _spare_index(label: str, labels: list[str]) -> int:
    """The index of a method among those without a fixed colour."""
    return 0 if label in METHOD_COLOURS else [other for other in labels if other not in METHOD_COLOURS].index(label)


def task_title(name: str) -> str:
    """The name of a task as figures and tables write it."""
    return TITLES.get(name, name)


def method_title(label: str) -> str:
    """``eap-gp+steps=10`` as EAP-GP, steps=10."""
    name, *options = label.split("+")
    return ", ".join([name.upper() if name.startswith("eap") else name, *options])
