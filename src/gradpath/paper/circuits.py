"""A drawing of the Greater-Than circuit at 99.9% sparsity, and a comparison with circuits found by hand.

Pruned circuits of many sizes are compared with the IOI and Greater-Than circuits that people found by hand in GPT-2
small (``data/manual``), as read by the EAP-IG authors and by ACDC: precision and recall of nodes and edges. Only a
model with GPT-2 small's heads can be compared.

Nodes are counted so that the totals agree with the literature (IOI 26 nodes and 215 edges, Greater-Than 19 and 240): a
node is a head or MLP in one of the circuit's groups. Nodes that are on edges but in no group are left out of the
comparison: ``input``, ``logits``, and ``m11``, which is on two edges of the IOI circuit, a9.h7 -> m11 -> logits.
"""

from __future__ import annotations

import json
from collections.abc import Sequence, Set
from dataclasses import dataclass
from importlib import resources
from itertools import pairwise, product
from pathlib import Path
from typing import TYPE_CHECKING

from gradpath.circuit import Circuit
from gradpath.formats.edges import dot
from gradpath.graph import Graph
from gradpath.recipe import Recipe
from gradpath.report.figure import circuit_figure
from gradpath.report.style import INK, LINES, colour, method_title, panels, save, task_title
from gradpath.runtime.files import write_atomically
from gradpath.study import method_recipe
from gradpath.study.bench import Bench, Row
from gradpath.study.faithfulness import READING
from gradpath.study.outcome import Column, Experiment, Outcome, grouped, markdown, nfs, percent, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SPARSITY = 0.999
COLUMNS: list[Column] = [
    ("task, selection", lambda row: f"{task_title(row['task'])}, {row['selection']}"),
    ("edges requested", lambda row: f"{row['edges_requested']:,}"),
    ("edges left", lambda row: f"{row['edges_kept']:,}"),
    ("NFS [95%]", nfs),
    ("error", lambda row: f"{row['error']:.3f}"),
]
SHAPE = Graph(n_layers=12, n_heads=12)
FILES = ("ioi", "ioi_acdc", "greater_than", "greater_than_acdc")
POINTS = 48  # sizes of circuits, from one edge to all of them


def circuit_outcome(bench: Bench) -> Outcome:
    study = bench.study
    # EAP-GP, or the first method if that was not requested
    method = next((word for word in study.methods if method_recipe(word).method == "eap-gp"), study.methods[0])
    tasks, sparsity = study.tasks or ("greater-than",), study.sizes[0][1] if study.sizes else SPARSITY
    recipes = {task: list(study.recipes(task, [("sparsity", sparsity)], [method])) for task in tasks}
    rows = [row for group in recipes.values() for row in bench.rows(group)]
    circuits = {task: _first_with_edges(bench, group) for task, group in recipes.items()}
    notes = [
        f"Drawn for {task_title(task)}: {circuit.selection}, {len(circuit)} edges."
        if len(circuit)
        else f"Not drawn for {task_title(task)}: no edge is left after pruning. Request a lower sparsity."
        for task, circuit in circuits.items()
    ]

    def files(folder: Path) -> list[Path]:
        written = []
        for task, circuit in circuits.items():
            examples = len(bench.task(study.at(task), "train"))
            title = f"{task_title(task)} in {bench.title}: {len(circuit)} edges at {100 * sparsity:.4g}% sparsity\n"
            title += f"{method_title(method)}, {circuit.selection}, on {examples} examples"
            written += _write_circuit(folder, task, circuit, title)
        return written

    return Outcome(
        name="circuit",
        title=f"Circuits of {bench.title} at {100 * sparsity:.4g}% sparsity, found by {method_title(method)}",
        rows=rows,
        text=table(COLUMNS, rows),
        notes=(*notes, READING),
        files=files,
    )


def _first_with_edges(bench: Bench, recipes: Sequence[Recipe]) -> Circuit:
    """The circuit of the first selection that leaves an edge: top-n at 99.9% is often pruned to nothing."""
    circuits = []
    for recipe in recipes:
        n = bench.edge_count(recipe)
        assert n is not None
        circuits.append(bench.order(recipe, {n})[:n])
    return next((circuit for circuit in circuits if len(circuit)), circuits[0])


def _write_circuit(folder: Path, task: str, circuit: Circuit, title: str) -> list[Path]:
    """Write the circuit as JSON and, if it has edges, as pictures."""
    json_file, dot_file = (folder / f"circuit-{task}.{suffix}" for suffix in ("json", "dot"))
    circuit.save(json_file)
    if not len(circuit):
        return [json_file]
    pictures = save(circuit_figure(circuit, title=title), folder / f"circuit-{task}")
    write_atomically(dot_file, dot(circuit))
    return [json_file, *pictures, dot_file]


CIRCUIT = Experiment("circuit", circuit_outcome)


@dataclass(frozen=True)
class ManualCircuit:
    """A circuit of the literature."""

    name: str
    task: str
    title: str
    source: str
    nodes: frozenset[str]
    edges: frozenset[str]

    @property
    def uncounted(self) -> frozenset[str]:
        """Nodes on its edges that are in none of its groups."""
        return nodes_of(self.edges) - self.nodes


def nodes_of(edges: Set[str]) -> frozenset[str]:
    """Both ends of every edge, as nodes.

    >>> sorted(nodes_of({"input->a0.h1<q>", "a0.h1->logits"}))
    ['a0.h1', 'input', 'logits']
    """
    return frozenset(end.partition("<")[0] for edge in edges for end in edge.split("->"))


def manual_circuits() -> list[ManualCircuit]:
    folder = resources.files("gradpath.paper") / "data" / "manual"
    circuits = []
    for name in FILES:
        content = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        nodes = frozenset(node for group in content["groups"].values() for node in group)
        task, title, source = (content[key] for key in ("task", "title", "source"))
        circuits.append(ManualCircuit(name, task, title, source, nodes, frozenset(content["edges"])))
    return circuits


def compare(circuit: Circuit, manual: ManualCircuit) -> dict[str, float | None]:
    """Precision, the share of a circuit that is in the manual one, and recall, the reverse, of edges and of nodes.

    An empty circuit has no precision.
    """
    edges, shares = frozenset(circuit.edges), dict[str, float | None]()
    nodes = nodes_of(edges) - manual.uncounted - {"input", "logits"}
    for kind, ours, theirs in (("edge", edges, manual.edges), ("node", nodes, manual.nodes)):
        shares[f"{kind}_precision"] = len(ours & theirs) / len(ours) if ours else None
        shares[f"{kind}_recall"] = len(ours & theirs) / len(theirs)
    return shares


def manual_refusal(bench: Bench) -> str | None:
    graph = bench.model.graph
    if (graph.n_layers, graph.n_heads) != (SHAPE.n_layers, SHAPE.n_heads):
        return (
            "the manual circuits are of GPT-2 small, which has 12 layers of 12 heads: "
            f"{bench.title} has {graph.n_layers} of {graph.n_heads}. Give --model gpt2 or its folder."
        )
    return (
        None if _chosen(bench) else "there are manual circuits of the tasks ioi and greater-than: request one of these."
    )


def _chosen(bench: Bench) -> list[ManualCircuit]:
    tasks = bench.study.tasks
    return [manual for manual in manual_circuits() if tasks is None or manual.task in tasks]


def manual_outcome(bench: Bench) -> Outcome:
    choices = product(_chosen(bench), bench.study.selections, bench.study.methods)
    rows = [row for manual, selection, method in choices for row in _rows(bench, manual, method, selection)]
    groups = grouped(rows, "manual")
    return Outcome(
        name="manual",
        title=f"Circuits of {bench.title} against manual circuits",
        rows=rows,
        text="\n\n".join(_section(manual, groups[manual.name]) for manual in _chosen(bench)),
        figures={"manual": lambda: _draw_overlap(bench, rows)},
        notes=("Circuits are pruned. input, logits and nodes in no group of a circuit are not counted.",),
    )


def _rows(bench: Bench, manual: ManualCircuit, method: str, selection: str) -> list[Row]:
    # Sizes at equal ratios, and that of the manual circuit.
    n_edges, rows = bench.model.graph.n_edges, list[Row]()
    ratio = n_edges ** (1 / (POINTS - 1))
    sizes = sorted({len(manual.edges), *(min(n_edges, round(ratio**i)) for i in range(POINTS))})
    order = bench.order(bench.study.at(manual.task, method).changed(selection=selection), set(sizes))
    start = {"manual": manual.name, "task": manual.task, "method": method, "selection": selection}
    for n in sizes:
        circuit = order[:n]
        sizes_of = {"edges_requested": n, "edges_kept": len(circuit)}
        rows.append({**start, **sizes_of, **compare(circuit, manual)})
    return rows


def area(rows: Sequence[Row], kind: str) -> float:
    """The area under precision against recall, by trapezoids over recall."""
    points = sorted(zip(*_curve(rows, kind), strict=True))
    return float(sum((r2 - r1) * (p1 + p2) / 2 for (r1, p1), (r2, p2) in pairwise(points)))


def _curve(rows: Sequence[Row], kind: str) -> tuple[list[float], list[float]]:
    """Recall and precision of the circuits that have any edges."""
    rows = [row for row in rows if row[f"{kind}_precision"] is not None]
    return [row[f"{kind}_recall"] for row in rows], [row[f"{kind}_precision"] for row in rows]


def _section(manual: ManualCircuit, rows: Sequence[Row]) -> str:
    headings = ["method, selection", "edge area", "node area"]
    headings += [f"edge {x} at {len(manual.edges)} edges" for x in ("precision", "recall")]
    headings += [f"node {x} there" for x in ("precision", "recall")]
    lines = []
    for (selection, label), group in grouped(rows, "selection", "method").items():
        same_size = next(row for row in group if row["edges_requested"] == len(manual.edges))
        line = [f"{method_title(label)}, {selection}", *(f"{area(group, kind):.3f}" for kind in ("edge", "node"))]
        names = ("edge_precision", "edge_recall", "node_precision", "node_recall")
        lines.append([*line, *(percent(same_size[name]) for name in names)])
    size = f"{len(manual.nodes)} nodes, {len(manual.edges)} edges"
    head = f"## {manual.title}\n\n{size}. Source: {manual.source}. Precision and recall in percent.\n\n"
    return head + markdown(headings, lines)


def _draw_overlap(bench: Bench, rows: Sequence[Row]) -> Figure:
    from matplotlib.lines import Line2D

    circuits, labels = _chosen(bench), list(grouped(rows, "method"))
    figure, axes = panels(len(circuits), 2, (8.6, 3.2 * len(circuits) + 0.8))
    for i, manual in enumerate(circuits):
        examples = len(bench.task(bench.study.at(manual.task), "train"))
        for kind, ax in zip(("node", "edge"), axes[2 * i :], strict=False):
            for (label, name), group in grouped(grouped(rows, "manual")[manual.name], "method", "selection").items():
                ax.plot(*_curve(group, kind), LINES.get(name, ":"), color=colour(label, labels), linewidth=1.5)
            count = len(manual.nodes if kind == "node" else manual.edges)
            ax.set_title(f"{manual.title}\n{count} {kind}s, {examples} examples", fontsize=8.5, color=INK)
            ax.set_xlabel(f"{kind} recall (share of the manual circuit)")
            ax.set_ylabel(f"{kind} precision (share of ours)")
            ax.set_xlim(-0.02, 1.02)
            ax.set_ylim(-0.02, 1.02)
    handles = [Line2D([], [], color=colour(x, labels), label=method_title(x)) for x in labels]
    handles += [
        Line2D([], [], color=INK, linestyle=LINES.get(name, ":"), label=name) for name in grouped(rows, "selection")
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
    figure.suptitle(f"Overlap with manual circuits in {bench.title}", fontsize=12, color=INK)
    return figure


MANUAL = Experiment("manual", manual_outcome, manual_refusal)
