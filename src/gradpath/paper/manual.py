"""Circuits that people found by hand in GPT-2 small, read from ``data/manual``, as sets of edges.

How nodes are counted, so that the totals of the literature come out (IOI 26 nodes and 215 edges, Greater-Than
19 and 240): a node is a head or MLP that belongs to one of the circuit's groups. ``input`` and ``logits``
belong to every circuit. ``m11`` stands on two edges of the IOI circuit, a9.h7 -> m11 -> logits, but in none
of its groups. What is on edges but in no group is left out of the comparison of nodes altogether.

Precision and recall of nodes and edges against the circuits that people found in GPT-2 small.

Circuits of growing size, pruned, against the IOI and Greater-Than circuits of the literature, in the reading
of the EAP-IG authors and in ACDC's. Only a model with GPT-2 small's heads can be compared.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from gradpath.circuit import Circuit
from gradpath.graph import Graph
from gradpath.grid.bench import Bench
from gradpath.grid.jobs import Job, ScoreJob
from gradpath.grid.output import Outcome, markdown, percent
from gradpath.grid.request import MethodSpec
from gradpath.grid.runner import Experiment
from gradpath.report.style import INK, LINES, colour, method_title, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


SHAPE = Graph(n_layers=12, n_heads=12)
FILES = ("ioi", "ioi_acdc", "greater_than", "greater_than_acdc")


@dataclass(frozen=True)
class ManualCircuit:
    """A circuit of the literature and where it is from."""

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


def nodes_of(edges: frozenset[str] | set[str]) -> frozenset[str]:
    """Both ends of every edge, as nodes.

    >>> sorted(nodes_of({"input->a0.h1<q>", "a0.h1->logits"}))
    ['a0.h1', 'input', 'logits']
    """
    ends = (end for edge in edges for end in edge.split("->"))
    return frozenset(end.partition("<")[0] for end in ends)


def manual_circuits() -> list[ManualCircuit]:
    folder = resources.files("gradpath.paper") / "data" / "manual"
    circuits = []
    for name in FILES:
        content = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        nodes = frozenset(node for group in content["groups"].values() for node in group)
        circuits.append(
            ManualCircuit(
                name, content["task"], content["title"], content["source"], nodes, frozenset(content["edges"])
            )
        )
    return circuits


@dataclass(frozen=True)
class Overlap:
    """How much of what was found is right, and how much of what is right was found."""

    precision: float | None  # None where nothing was found
    recall: float


def overlap(found: frozenset[str], right: frozenset[str]) -> Overlap:
    hits = len(found & right)
    return Overlap(hits / len(found) if found else None, hits / len(right))


def compare(circuit: Circuit, manual: ManualCircuit) -> tuple[Overlap, Overlap]:
    """The overlap of edges, and of nodes."""
    edges = frozenset(circuit.edges)
    ignored = manual.uncounted | {"input", "logits"}
    return overlap(edges, manual.edges), overlap(nodes_of(edges) - ignored, manual.nodes)


Row = dict[str, Any]
POINTS = 48  # sizes of circuits, from one edge to all of them


def refusal(bench: Bench) -> str | None:
    graph = bench.model.graph
    if (graph.n_layers, graph.n_heads) != (SHAPE.n_layers, SHAPE.n_heads):
        return (
            "the manual circuits are of GPT-2 small, which has 12 layers of 12 heads: "
            f"{bench.title} has {graph.n_layers} of {graph.n_heads}. Give --model gpt2 or its folder."
        )
    return None if _chosen(bench) else "the manual circuits are of the tasks ioi and greater-than: ask for one."


def _chosen(bench: Bench) -> list[ManualCircuit]:
    tasks = bench.request.tasks
    return [manual for manual in manual_circuits() if tasks is None or manual.task in tasks]


def jobs(bench: Bench) -> list[Job]:
    tasks = dict.fromkeys(manual.task for manual in _chosen(bench))
    return [ScoreJob(task, method) for task in tasks for method in bench.request.methods]


def outcome(bench: Bench) -> Outcome:
    rows = [
        row
        for manual in _chosen(bench)
        for how in bench.request.hows
        for method in bench.request.methods
        for row in _rows(bench, manual, method, how)
    ]
    return Outcome(
        name="manual",
        title=f"Circuits of {bench.title} against those that people found",
        rows=rows,
        text="\n\n".join(_table(bench, manual, rows) for manual in _chosen(bench)),
        figures={"manual": lambda: _draw(bench, rows)},
        notes=("Circuits are pruned. input, logits and what is in no group of a circuit are not counted.",),
    )


def _rows(bench: Bench, manual: ManualCircuit, method: MethodSpec, how: str) -> list[Row]:
    scores = bench.scores(manual.task, method)
    rows = []
    counts = _sizes(scores.graph.n_edges, len(manual.edges))
    for circuit in bench.circuits(scores, manual.task, how, counts):
        edges, nodes = compare(circuit, manual)
        row: Row = {"manual": manual.name, "task": manual.task, "method": method.label, "how": how}
        row |= {"edges_asked": circuit.asked, "edges_kept": len(circuit)}
        row |= {"edge_precision": edges.precision, "edge_recall": edges.recall}
        row |= {"node_precision": nodes.precision, "node_recall": nodes.recall}
        rows.append(row)
    return rows


def _sizes(most: int, own: int) -> list[int]:
    """Numbers of edges at equal ratios, and the manual circuit's own."""
    ratio = most ** (1 / (POINTS - 1))
    return sorted({own, *(min(most, round(ratio**i)) for i in range(POINTS))})


def area(rows: Sequence[Row], kind: str) -> float:
    """The area under precision against recall, by trapezoids over recall."""
    points = sorted(
        (row[f"{kind}_recall"], row[f"{kind}_precision"]) for row in rows if row[f"{kind}_precision"] is not None
    )
    return float(sum((r2 - r1) * (p1 + p2) / 2 for (r1, p1), (r2, p2) in pairwise(points)))


def _table(bench: Bench, manual: ManualCircuit, rows: Sequence[Row]) -> str:
    headings = ["method, selection", "edge area", "node area"]
    headings += [f"edge {x} at {len(manual.edges)} edges" for x in ("precision", "recall")]
    headings += [f"node {x} there" for x in ("precision", "recall")]
    lines = []
    for how in bench.request.hows:
        for method in bench.request.methods:
            own = [x for x in rows if (x["manual"], x["how"], x["method"]) == (manual.name, how, method.label)]
            there = next(row for row in own if row["edges_asked"] == len(manual.edges))
            line = [f"{method_title(method.label)}, {how}", f"{area(own, 'edge'):.3f}", f"{area(own, 'node'):.3f}"]
            for kind in ("edge", "node"):
                line += [percent(there[f"{kind}_precision"]), percent(there[f"{kind}_recall"])]
            lines.append(line)
    size = f"{len(manual.nodes)} nodes, {len(manual.edges)} edges"
    head = f"## {manual.title}\n\n{size}. Source: {manual.source}. Precision and recall in percent.\n\n"
    return head + markdown(headings, lines)


def _draw(bench: Bench, rows: Sequence[Row]) -> Figure:
    from matplotlib.lines import Line2D

    circuits = _chosen(bench)
    figure, axes = panels(len(circuits), 2, (8.6, 3.2 * len(circuits) + 0.8))
    labels = [method.label for method in bench.request.methods]
    for i, manual in enumerate(circuits):
        own = [row for row in rows if row["manual"] == manual.name]
        examples = len(bench.task(manual.task, "train"))
        for kind, ax in zip(("node", "edge"), axes[2 * i : 2 * i + 2], strict=True):
            _panel(ax, own, kind, labels)
            count = len(manual.nodes if kind == "node" else manual.edges)
            ax.set_title(f"{manual.title}\n{count} {kind}s, {examples} examples", fontsize=8.5, color=INK)
    hows = bench.request.hows
    handles = [Line2D([], [], color=colour(x, labels), label=method_title(x)) for x in labels]
    handles += [Line2D([], [], color=INK, linestyle=LINES.get(how, ":"), label=how) for how in hows]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
    figure.suptitle(f"Overlap with manual circuits in {bench.title}", fontsize=12, color=INK)
    return figure


def _panel(ax: Axes, rows: Sequence[Row], kind: str, labels: list[str]) -> None:
    for label, how in dict.fromkeys((row["method"], row["how"]) for row in rows):
        own = [row for row in rows if (row["method"], row["how"]) == (label, how)]
        shown = [row for row in own if row[f"{kind}_precision"] is not None]
        x, y = ([row[f"{kind}_{what}"] for row in shown] for what in ("recall", "precision"))
        ax.plot(x, y, LINES.get(how, ":"), color=colour(label, labels), linewidth=1.5)
    ax.set_xlabel(f"{kind} recall (share of the manual circuit)")
    ax.set_ylabel(f"{kind} precision (share of ours)")
    ax.set_xlim(-0.02, 1.02)
    ax.set_ylim(-0.02, 1.02)


EXPERIMENT = Experiment("manual", jobs, outcome, refusal)
