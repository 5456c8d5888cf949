"""The heat map of faithfulness over the number of steps and sparsity, for EAP-GP.

The paper's claim: a few steps are enough, and more can hurt.

With unit steps, GradPath's points for k = 3 are the first three of k = 20. So one run of 20 steps gives the scores of
every smaller k::

    score_k = (x_u - x'_u) . 1/k  sum over j = 1..k of  dL/d in_v (gamma_j)

as running sums: 22 forward and 40 backward passes instead of 243 and 414 for k = 3..20. The numbers are those of
``attribute`` up to the rounding of a sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from gradpath.attribution.attribute import attribute_at_steps
from gradpath.attribution.methods import find_method, find_path
from gradpath.model.transformer import Transformer
from gradpath.prepared import PreparedBatches
from gradpath.recipe import Recipe
from gradpath.report.style import INK, method_title, task_title, tiled
from gradpath.scores import Scores
from gradpath.study import method_options, method_recipe
from gradpath.study.bench import Bench, Row, timed
from gradpath.study.faithfulness import READING
from gradpath.study.outcome import Experiment, Outcome, grouped, markdown, percent
from gradpath.sweep import Limits
from gradpath.tasks import Task

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def is_nested(recipe: Recipe) -> bool:
    """Whether the points of fewer steps are the first points of more."""
    options = method_options(recipe)
    return recipe.method == "eap-gp" and options["stride"] == "unit" and not options["pin_end"]


def attribute_nested(
    model: Transformer, task: Task, recipe: Recipe, steps: Sequence[int], *, limits: Limits = Limits()
) -> dict[int, Scores]:
    """The scores of a nested method for each number of steps, from one run of the path per batch."""
    assert is_nested(recipe)
    *stops, longest = sorted(set(steps))
    path, options = find_path(recipe.method), method_options(recipe.changed(steps=longest))
    scores = attribute_at_steps(PreparedBatches(model, task, limits=limits), path, options, stops=stops)
    return dict(zip([*stops, longest], scores, strict=True))


def _store_scores(bench: Bench, recipe: Recipe, steps: Sequence[int]) -> None:
    """Store the scores of a nested method for all numbers of steps that are missing, from one run of the path."""
    keys = {k: bench.scores_key(recipe.changed(steps=k)) for k in steps}
    missing = {k: key for k, key in keys.items() if not bench.store.has_scores(key)}
    if not missing:
        return
    train, limits = bench.task(recipe, "train"), bench.study.limits
    scores, seconds = timed(lambda: attribute_nested(bench.model, train, recipe, [*missing], limits=limits))
    for k, key in missing.items():
        bench.store.keep_scores(key, scores[k], seconds * k / max(missing))  # the share that k steps alone would take


def methods(bench: Bench) -> list[str]:
    """EAP-GP and its variants; if none was requested, all methods with steps."""
    names = {word: method_recipe(word).method for word in bench.study.methods}
    gradpath = [word for word, name in names.items() if name == "eap-gp"]
    return gradpath or [word for word, name in names.items() if "steps" in find_method(name).defaults]


def refusal(bench: Bench) -> str | None:
    if methods(bench):
        return None
    labels = ", ".join(bench.study.methods)
    return f"the heat map over steps needs a method with steps: got {labels}. Give --methods eap-gp."


def outcome(bench: Bench) -> Outcome:
    study, selection, rows = bench.study, bench.study.selections[0], list[Row]()
    for task, method in product(study.task_names, methods(bench)):
        if is_nested(study.at(task, method)):
            _store_scores(bench, study.at(task, method), study.steps)
        circuits = list(study.recipes(task, bench.sizes(task), [method], [selection]))
        recipes = [recipe.changed(steps=k) for k in study.steps for recipe in circuits]
        name = "+".join(part for part in method.split("+") if not part.startswith("steps="))
        rows += [{**row, "method": name} for row in bench.rows(recipes)]
    return Outcome(
        name="steps",
        title=f"Faithfulness over steps and sparsity in {bench.title}",
        rows=rows,
        text="\n\n".join(_section(group) for group in grouped(rows, "task", "method").values()),
        figures={"steps": lambda: _draw(rows, bench.title)},
        notes=(f"Edges selected by {selection}. {READING}",),
    )


def _section(rows: Sequence[Row]) -> str:
    head = f"## {_title(rows)}\n\nNFS in percent on {rows[0]['examples']} held-out examples, "
    head += "for k steps and each sparsity.\n\n"
    lines = [[k, *(percent(row["faithfulness"]) for row in group)] for k, group in grouped(rows, "steps").items()]
    return head + markdown(["k", *(f"{100 * sparsity:.4g}%" for sparsity in grouped(rows, "sparsity"))], lines)


def _title(rows: Sequence[Row]) -> str:
    return f"{task_title(rows[0]['task'])}, {method_title(rows[0]['method'])}"


def _draw(rows: Sequence[Row], model: str) -> Figure:
    groups = grouped(rows, "task", "method")
    figure, axes, _ = tiled(len(groups), (5.2, 0.19 * len(grouped(rows, "steps")) + 1.2), (0.8, 0.6))
    images = [_panel(ax, group) for ax, group in zip(axes, groups.values(), strict=False)]
    bar = figure.colorbar(images[-1], ax=axes, shrink=0.8, extend="both")
    bar.set_label("NFS (% of clean - corrupted)")
    figure.suptitle(f"Faithfulness over the number of steps in {model}", fontsize=12, color=INK)
    return figure


def _panel(ax: Axes, rows: Sequence[Row]) -> Any:
    steps, sparsities = grouped(rows, "steps"), grouped(rows, "sparsity")
    values = [[100 * row["faithfulness"] for row in group] for group in steps.values()]
    image = ax.imshow(values, aspect="auto", cmap="viridis", vmin=0, vmax=100, origin="lower")
    ax.grid(visible=False)
    for i, line in enumerate(values):
        for j, number in enumerate(line):
            ink = INK if number > 60 else "white"
            ax.text(j, i, percent(number / 100, 0), ha="center", va="center", fontsize=6.5, color=ink)
    ax.set_xticks(range(len(sparsities)), [f"{100 * s:.4g}" for s in sparsities], fontsize=7.5)
    ax.set_yticks(range(len(steps)), [str(k) for k in steps], fontsize=7.5)
    ax.set_title(f"{_title(rows)}  ({rows[0]['examples']} held-out examples)", color=INK, fontsize=9.5)
    ax.set_xlabel("edge sparsity (% of edges left out)")
    ax.set_ylabel("steps k (points of the path)")
    return image


STEPS = Experiment("steps", outcome, refusal)
