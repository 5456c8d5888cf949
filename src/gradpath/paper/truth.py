"""Methods and selections against models whose circuit is known. The paper has no such table.

Every compiled model (``compiled``) has true edges, derived by interventions and stored (``benchmarks/truth``). A
method ranks all edges by |score|, and every group of equal scores ends a circuit; a selection gives circuits of several
sizes. For each circuit, the last of which has all edges,

    precision = true edges in it / edges in it        recall = true edges in it / true edges

The area is the sum of precision times the gain in recall over the circuits in order of recall (average precision). At
random it is the share of true edges among all. F1 is the harmonic mean of precision and recall, at the circuit where it
is largest. The recall of each kind of true edge is at the same circuit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from statistics import mean
from typing import Any

from torch import Tensor

from gradpath import defaults
from gradpath._version import __version__
from gradpath.attribution.attribute import attribute
from gradpath.graph import Graph
from gradpath.model.transformer import Transformer
from gradpath.paper.compiled import LEVELS, Compiled, load_compiled, program_names
from gradpath.report.style import method_title
from gradpath.runtime.progress import progress_bar
from gradpath.scores import Scores
from gradpath.selection import rank
from gradpath.study import method_options, method_recipe, words
from gradpath.study.bench import Bench, Row
from gradpath.study.bench import Cell as Measured
from gradpath.study.outcome import Experiment, Outcome, grouped, markdown
from gradpath.tasks.task import task_digest

METHODS = f"eap,eap-ig,eap-ig+steps=9,eap-ig+steps=50,eap-gp,{defaults.PAPER_GP},relp,gim,atp-star,exact"
BASE = defaults.METHOD  # the scores that selections start from
SELECTIONS = ("refined", "acdc")
THRESHOLDS = (0.2, 0.02, 0.002)  # of acdc
SIZES = 16  # of the circuits of a selection, from one edge to half of all
KINDS = ("open", "saturated", "redundant")
TIE = 1e-6  # of the largest |score|: smaller differences are rounding
Sets = Sequence[frozenset[str]]


def circuits_of_ranking(scores: Scores) -> list[frozenset[str]]:
    """The sets of edges above each score, from the largest |score| on; edges of equal scores come together."""
    names, size = _edges(scores.graph.mask, scores.graph), scores.values[scores.graph.mask].abs().double()
    steps = (size / size.max().clamp_min(1e-30) / TIE).round().tolist()
    return [
        frozenset(name for name, step in zip(names, steps, strict=True) if step >= least)
        for least in sorted(set(steps), reverse=True)
    ]


def _edges(mask: Tensor, graph: Graph) -> list[str]:
    return [graph.edge(u, v) for u, v in mask.nonzero().tolist()]


def agreement(circuits: Sets, kinds: Mapping[str, str]) -> dict[str, Any]:
    """Compare circuits with the true edges by precision and recall."""
    true = kinds.keys()
    points = [(len(edges & true) / len(edges), len(edges & true) / len(true), edges) for edges in circuits if edges]
    points.sort(key=lambda point: point[1])
    area = before = 0.0
    for precision, recall, _ in points:
        area, before = area + precision * (recall - before), recall
    f1, precision, recall, best = max(
        ((2 * p * r / (p + r) if r else 0.0, p, r, edges) for p, r, edges in points), key=lambda point: point[0]
    )
    row: dict[str, Any] = {"area": area, "f1": f1, "precision": precision, "recall": recall, "edges": len(best)}
    for kind in KINDS:
        true_of_kind = {edge for edge in kinds if kinds[edge] == kind}
        row |= {f"{kind}_true": len(true_of_kind), f"{kind}_found": len(true_of_kind & best)}
    return row


compiled = cache(load_compiled)
Cell = tuple[str, str, str, str]  # the program, its level, the method, and the selection or '' for the ranking


def _cells(bench: Bench) -> list[Cell]:
    methods = bench.study.methods
    if methods == words(defaults.PAPER_METHODS):  # the default of the command line
        methods = words(METHODS)
    rankings = [(method, "") for method in methods] + [(BASE, selection) for selection in SELECTIONS]
    return [(name, level, *ranking) for level in LEVELS for name in program_names() for ranking in rankings]


def _measured(bench: Bench, cell: Cell) -> Measured:
    name, level, method, selection = cell
    item, recipe = compiled(name, level), method_recipe(method)
    model, task, options = item.model, item.task, method_options(recipe)
    key = {
        "kind": "truth",
        "version": __version__,
        "weights": model.digest,
        "tokens": task_digest(task, model.tokenizer),
        "truth": sorted(item.kinds.items()),
        "method": recipe.method,
        "options": options,
        "selection": selection,
    }

    def compute() -> Mapping[str, Any]:
        scores = attribute(model, task, recipe.method, batch_size=len(task), **options)
        if not selection:
            return agreement(circuits_of_ranking(scores), item.kinds)
        every = frozenset(_edges(model.graph.mask, model.graph))
        return agreement([*_selected(item, scores, selection), every], item.kinds)

    return bench.store.measured(key, compute)


def _selected(item: Compiled, scores: Scores, selection: str) -> Sets:
    """The circuits of a selection at sizes from one edge to half of all, or at the thresholds of ACDC."""
    model, task = item.model, item.task
    if selection == "acdc":
        orders = [rank(scores, f"acdc+threshold={threshold}", model, task) for threshold in THRESHOLDS]
        circuits = [order.circuit(order.size or 0, prune=False) for order in orders]
    else:
        most = model.graph.n_edges / 2
        counts = sorted({max(1, round(most ** (i / (SIZES - 1)))) for i in range(SIZES)} | {len(item.kinds)})
        order = rank(scores, selection, model, task, sizes=counts)
        circuits = [order.circuit(n) for n in counts]
    return [frozenset(circuit.edges) for circuit in circuits]


def outcome(bench: Bench) -> Outcome:
    rows, cells = list[Row](), _cells(bench)
    with progress_bar("models with known circuits", len(cells), unit="cell") as bar:
        for name, level, method, selection in cells:
            row: Row = {"program": name, "level": level, "method": selection or method}
            row["edges_total"] = compiled(name, level).model.graph.n_edges
            rows.append(row | _measured(bench, (name, level, method, selection)))
            bar.update()
    models, folder = [compiled(name, level) for name in program_names() for level in LEVELS], bench.store.folder
    for item in models:  # checkpoints with data and true circuits, for other commands and other tools
        if not (folder / "models" / item.name / "circuit.json").is_file():  # written last
            item.save(folder / "models" / item.name)
    digests = {item.model.name: item.model.digest for item in models}
    return Outcome(
        name="truth",
        title="Methods against circuits that are known",
        rows=rows,
        text=f"{_summary(rows)}\n\n## By program, level curved: area\n\n{_by_program(rows)}",
        notes=(_note(bench),),
        facts={"edges_total": None, "models": digests, "true_edges": _all_kinds()},
    )


def _all_kinds() -> dict[str, dict[str, str]]:
    return {name: compiled(name, "plain").kinds for name in program_names()}


def _share(rows: Sequence[Row], kind: str) -> str:
    """The share of the true edges of a kind that are in the best circuits, over all programs and levels."""
    n_true, n_found = (sum(row[f"{kind}_{column}"] for row in rows) for column in ("true", "found"))
    return f"{100 * n_found / n_true:.0f}" if n_true else ""


def _summary(rows: Sequence[Row]) -> str:
    headings = ["method", *(f"area, {level}" for level in LEVELS), *(f"F1, {level}" for level in LEVELS)]
    headings += [*(f"{kind} edges found (%)" for kind in KINDS), "CPU seconds"]
    lines = []
    for label, group in grouped(rows, "method").items():
        by_level = grouped(group, "level")
        line = [method_title(label)]
        line += [f"{mean(row[x] for row in by_level[level]):.3f}" for x in ("area", "f1") for level in LEVELS]
        line += [_share(group, kind) for kind in KINDS]
        lines.append([*line, f"{sum(row['cpu_seconds'] for row in group):.1f}"])
    chance = [
        mean(sum(row[f"{kind}_true"] for kind in KINDS) / row["edges_total"] for row in rows if row["level"] == level)
        for level in LEVELS
    ]
    lines.append(["at random", *(f"{x:.3f}" for x in chance), *[""] * (len(headings) - 1 - len(chance))])
    return markdown(headings, lines)


def _by_program(rows: Sequence[Row]) -> str:
    hard = grouped([row for row in rows if row["level"] == LEVELS[-1]], "program")
    lines = [[name, *(f"{row['area']:.2f}" for row in group)] for name, group in hard.items()]
    return markdown(["program", *map(method_title, grouped(rows, "method"))], lines)


def _note(bench: Bench) -> str:
    examples = len(compiled(program_names()[0], "plain").task)
    return (
        f"{len(program_names())} programs at {len(LEVELS)} levels, {examples} pairs of prompts each; the metric is the "
        "logit difference. plain: as compiled. hidden: in a wider and deeper model with active heads and MLPs that do "
        "not reach the answer, rotated at random. curved: hidden, and with heads that do nothing but have a gradient. "
        "Means over programs. open edges have a gradient at the clean prompt, saturated ones have none, redundant ones "
        "do nothing by themselves because another edge does the same. Edges found are at the circuit with the best "
        f"F1, over all programs and levels. Selections start from {method_title(BASE)}. The folder models has "
        "every model as a checkpoint, with its data (pairs.csv) and its true circuit (circuit.json)."
    )


def own_model() -> Transformer:
    """The first compiled model, which stands for all of them in the record."""
    return replace(compiled(program_names()[0], "plain").model, name="compiled programs")


TRUTH = Experiment("truth", outcome, own_model=own_model)
