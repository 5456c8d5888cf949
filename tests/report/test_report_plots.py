"""Plots return axes; notebook cards are small, escaped HTML."""

from __future__ import annotations

import html
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
import pytest
import torch
from making import Maker

from gradpath.errors import InputError
from gradpath.evaluation.result import Result
from gradpath.recipe import Recipe
from gradpath.report.plots import plot_circuit, plot_result, plot_scores
from gradpath.report.style import INK, MUTED, panels, save_as
from gradpath.selection import select
from gradpath.study.faithfulness import draw_curves


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    mpl.use("agg")
    import matplotlib.pyplot as plt

    yield
    plt.close("all")


@pytest.fixture
def result() -> Result:
    clean = torch.tensor([4.0, 5.0, 6.0])
    return Result(clean, torch.zeros(3), clean * 0.8, edges_requested=100, edges_kept=90)


def test_result_plot_shows_every_example_and_the_share(result: Result) -> None:
    ax = plot_result(result)
    assert "80% of the behaviour" in ax.get_title(loc="left")
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["corrupted", "circuit", "model"]
    assert sum(len(dots.get_offsets()) for dots in ax.collections) == 9


@pytest.mark.slow
def test_a_backend_that_is_loaded_by_a_plot_stays_interactive(tmp_path: Path) -> None:
    """The backend of notebooks switches this on when it is loaded; without it, later figures are not shown."""
    (tmp_path / "own_backend.py").write_text(
        "import matplotlib\nfrom matplotlib.backends.backend_agg import FigureCanvasAgg as FigureCanvas\n"
        "matplotlib.rcParams['interactive'] = True\n"
    )
    code = (
        "import torch, matplotlib; from gradpath.evaluation.result import Result\n"
        "Result(torch.ones(3), torch.zeros(3), torch.ones(3), 1, 1).plot()\n"
        "print(matplotlib.get_backend(), matplotlib.is_interactive())"
    )
    settings = {**os.environ, "MPLBACKEND": "module://own_backend"}
    settings["PYTHONPATH"] = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    ran = subprocess.run([sys.executable, "-c", code], env=settings, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["module://own_backend", "True"]


def test_scores_plot_has_a_cell_for_every_node_that_writes_and_refuses_what_is_no_number(make: Maker) -> None:
    scores = make.scores(3, 4)
    array = plot_scores(scores).images[0].get_array()
    assert array is not None
    assert array.shape == (3, 5)
    with pytest.raises(InputError, match="not finite"):
        plot_scores(replace(scores, values=scores.values * torch.nan))


def test_plots_draw_into_the_axes_they_are_given(make: Maker, result: Result) -> None:
    import matplotlib.pyplot as plt

    _, (a, b, c) = plt.subplots(1, 3)
    scores = make.scores()
    circuit = select(scores, 30)
    assert plot_result(result, a) is a
    assert plot_scores(scores, b) is b
    assert plot_circuit(circuit, c) is c
    assert {edge.partition("->")[0] for edge in circuit.edges} <= {text.get_text() for text in c.texts}
    a.get_figure().canvas.draw()


def test_new_axes_are_in_the_style_of_all_figures(make: Maker, result: Result) -> None:
    before = dict(mpl.rcParams)
    for ax in (plot_result(result), plot_scores(make.scores())):
        assert mpl.colors.to_hex(ax.spines["left"].get_edgecolor()) == MUTED
        assert not ax.spines["top"].get_visible()
        assert ax.yaxis.label.get_color() == INK
        assert not any(line.get_visible() for line in ax.get_xgridlines())
    assert dict(mpl.rcParams) == before


def test_notebooks_show_what_is_printed(make: Maker, result: Result) -> None:
    evil = replace(make.scores(), recipe=Recipe(task="<script>alert(1)</script>"))
    for shown in (result, evil, select(evil, 30), select(evil, 30) - select(evil, 30)):
        assert shown._repr_html_() == f"<pre>{html.escape(str(shown), quote=True)}</pre>"


@pytest.mark.parametrize("suffix", ["svg", "png", "pdf"])
def test_names_are_not_taken_for_formulas(tmp_path: Path, suffix: str) -> None:
    figure, (axes,) = panels(1, 1, (3, 2))
    axes.set_title("costs $5 and $\\frac")
    axes.set_xticks([0, 1], ["$", "\\frac$x$"])
    save_as(figure, tmp_path / f"figure.{suffix}")
    assert suffix != "svg" or "$\\frac" in (tmp_path / "figure.svg").read_text()


@pytest.mark.parametrize("sparsities", [[0.99], [0.999, 0.9], [0.0, 1.0]])
def test_the_axis_of_sparsity_ends_at_100_and_a_single_size_has_its_interval(sparsities: list[float]) -> None:
    numbers = {"faithfulness": 0.6, "faithfulness_low": 0.4, "faithfulness_high": 0.8}
    common = {"task": "ioi", "method": "eap", "selection": "top", "examples": 9, **numbers}
    rows = [{**common, "sparsity": sparsity} for sparsity in sparsities]
    [ax] = draw_curves(rows, "smollm2", log=False).axes
    left, right = ax.get_xlim()
    assert 0 <= right < left <= 100
    assert all(right <= 100 * sparsity <= left for sparsity in sparsities)
    intervals = [line for line in ax.lines if line.get_marker() == "_"]
    assert [sorted(map(round, line.get_ydata())) for line in intervals] == [[40, 80]] * (len(rows) == 1)
