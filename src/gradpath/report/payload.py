"""From a report to the JSON of its page: a dictionary, with a comment on what is not clear from its name.

The page selects and prunes nothing itself. Of every order of edges it gets the edges, best first, and for each node the
smallest number of edges at which the node is on a path from ``input`` to ``logits``. More edges never disconnect a
node, so of the first n edges pruning keeps those both of whose ends are connected at n.

A model can have millions of edges, so a run keeps only those that can appear among the first ``LIMIT`` of a selection.
A column is a text: little-endian numbers in base64.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from importlib.resources import files
from math import isfinite
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from gradpath._version import __version__
from gradpath.circuit import Circuit
from gradpath.errors import InputError
from gradpath.explanation import Inside
from gradpath.explanation.roles import Role
from gradpath.graph import Graph, kind
from gradpath.report.data import IN_PAGE, READABLE, SAVED, MethodRun, Report
from gradpath.report.style import method_title
from gradpath.scores import Scores
from gradpath.selection import SELECTIONS, rank
from gradpath.selection.ranking import Sample
from gradpath.verdict import NAMES, QUESTIONS, sentence
from gradpath.verdict.checks import FEWEST, NULLS, limit_of

Json = dict[str, Any]
LIMIT = 20_000
_KINDS = ("q", "k", "v", "mlp", "logits")
MOST_RANKS = 2**16 - 1
_DIGITS = 4  # of the numbers of roles: a page has thousands of them
TEST = "gradpath test circuit.json --out verdict.html"


def page_of(report: Report, limit: int = LIMIT) -> Json:
    """What the page of a report shows.

    ``limit`` is the largest number of edges that can be selected in the page, if the report needs no more.
    """
    graph, chosen = report.runs[0].graph, report.chosen
    limit = min(graph.n_edges, max(limit, chosen.edges))
    run = report.runs[chosen.run]
    saved = run.circuit if chosen.how == SAVED and run.smallest is None else None
    return {
        "title": report.title,
        "model": report.model,
        "task": report.task,
        "graph": graph_table(graph),
        "edges_total": graph.n_edges,
        "readable": READABLE,  # edges that are drawn at first
        "runs": [_run(run, limit, report) for run in report.runs],
        "chosen": replace(chosen, requested=chosen.edges if saved is None else saved.requested),
        "examples": report.examples,
        "command": report.command,
        "bibtex": bibtex((run.origin.recipe and run.origin.recipe.method) or "" for run in report.runs),
        "verdict": _verdict(report) if report.checks or report.summary else None,
        "undone": report.undone,
        "inside": _inside(report.inside) if isinstance(report.inside, Inside) else None,
        "no_inside": report.inside if isinstance(report.inside, str) else "",  # why it is not known
        "small": report.small,
        "small_text": report.small_text[:1].upper() + report.small_text[1:],
        "compare": None,  # of a comparison: Comparison.to_json, and the names of both circuits
        "notes": {} if run.circuit is None else run.circuit.notes,
    }


def _check(run: MethodRun) -> None:
    parts = [] if run.scores is None else [run.scores.values]
    parts += [] if run.circuit is None else [run.circuit.scores]
    if bad := sum(int((~part.isfinite()).sum()) for part in parts):
        raise InputError(
            f"{bad:,} scores of {run.label} are not finite numbers, so they cannot be ranked or drawn. "
            "Attribute again in float32, or leave out examples with extreme logits."
        )


def graph_table(graph: Graph) -> Json:
    """The model's graph. Nodes are numbered: the sources in their order, then ``logits``."""
    places = [(-1, -1), *map(graph.place_of_source, range(1, graph.n_sources)), (graph.n_layers, -1)]
    layers, columns = zip(*places, strict=True)
    return {
        **graph.to_json(),
        "nodes": (*graph.sources, "logits"),
        "layers": layers,
        "columns": columns,  # the head; n_heads for an MLP, -1 for input and logits
        "target_nodes": graph.node_of_target.tolist(),
        "target_kinds": [_KINDS.index(kind(target)) for target in graph.targets],
    }


def _run(run: MethodRun, limit: int, report: Report) -> Json:
    """One method, or one part of a comparison. Its edges are columns, sorted by their position in the matrix."""
    _check(run)
    flat_orders = {} if run.circuit is None else {SAVED: run.circuit.flat}
    if run.scores is not None:
        values = run.scores.values.detach().cpu().float()
        flat_orders |= {how: rank(Scores(run.graph, values), how, largest=limit).edges for how in IN_PAGE}
    else:
        assert run.circuit is not None
        values = ranks_and_scores(run.circuit)[1]
    flat = torch.unique(torch.cat(list(flat_orders.values())))
    return {
        "name": method_title(run.label),
        "edges": packed(flat, "<u4"),  # positions in the flattened (source, target) matrix
        "scores": packed(values.flatten()[flat], "<f4"),
        "sides": None,  # of a comparison: ranks from 1, 0 for edges that it does not have, and scores of A and of B
        "orders": {how: _order(run, how, order, flat) for how, order in flat_orders.items()},
        "curve": run.curve,
        "recorded": run.origin.facts.recorded,  # for the file of its circuit
        "facts": facts_of(report.model, report.task, about_of(run.origin), report.about),
        "cut": _cut(len(flat), run.graph.n_edges, limit if run.scores is not None else None),
    }


def _order(run: MethodRun, key: str, flat: Tensor, columns: Tensor) -> Json:
    """Edges, best first; the first n are the circuit of n edges.

    ``flat`` are the positions of the order's edges in the matrix, ``columns`` those of all edges of the run.
    """
    how, smallest, requested, recipe = key, 1, None, run.origin.recipe
    if key == SAVED:
        assert run.circuit is not None
        how, smallest, recipe = run.circuit.selection or SAVED, run.smallest or 1, run.circuit.recipe
        requested = run.circuit.requested if run.smallest is None else None
    own = key == SAVED and how in (SAVED, *IN_PAGE)  # the page may offer the same selection from the scores
    areas = run.areas.get(how)
    named = () if areas is None else (("CPR", areas.cpr, areas.cpr_interval), ("CMD", areas.cmd, areas.cmd_interval))
    return {
        "label": "As found" if own else how[:1].upper() + how[1:],
        "title": "The edges in the order of the saved circuit" if key == SAVED else SELECTIONS[key].about,
        "how": how,  # points of the curve with this name belong to it
        "size": len(flat),
        "smallest": smallest,  # the smallest number of edges that it was made for
        "requested": requested,  # edges that were requested, if only the whole order is a circuit of the selection
        "edges": packed(torch.searchsorted(columns, flat), "<u4"),  # positions in the run's columns
        "connected": packed(connected_from(run.graph, flat), "<u4"),
        # For each resample the rank of each column's edge, from 1; 65,535 without one.
        "resamples": [packed(_ranks(sample, columns), "<u2") for sample in run.samples] if key == SAVED else [],
        "resampled": len(run.samples[0].edges) if run.samples and key == SAVED else 0,  # edges in which they differ
        "recipe": None if recipe is None else recipe.selected(None if how in (SAVED, "nodes") else how).recorded,
        "areas": ", ".join(f"{name} {area:.3f} ({low:.2f} to {high:.2f})" for name, area, (low, high) in named),
    }


def _ranks(sample: Sample, columns: Int[Tensor, " edge"]) -> Int[Tensor, " edge"]:
    """The rank of each edge in a resample, from 1; ``MOST_RANKS`` for those without one."""
    edges, ranks = sample.edges[: MOST_RANKS - 1].sort()
    at = torch.searchsorted(edges, columns).clamp(max=len(edges) - 1)
    return torch.where(edges[at] == columns, ranks[at] + 1, MOST_RANKS)


def connected_from(graph: Graph, order: Int[Tensor, " edge"]) -> Int[Tensor, " node"]:
    """For each node the least n at which it is on a path of the first n edges of an order from ``input`` to ``logits``.

    The path whose last edge comes first, found layer by layer; more than the number of edges if there is none. Nodes
    are the sources and then ``logits``.
    """
    never = len(order) + 1
    rank = torch.full((graph.n_pairs,), never, dtype=torch.long, device="cpu")
    rank[order] = torch.arange(1, len(order) + 1, device="cpu")
    rank = rank.view(graph.n_sources, graph.n_targets)
    reached = torch.full((graph.n_sources + 1,), never, device="cpu")  # from input
    reached[0] = 0
    leading = torch.full((graph.n_targets,), never, device="cpu")  # to logits
    leading[graph.logits] = 0

    def from_input(targets: slice) -> Tensor:
        return rank[:, targets].maximum(reached[:-1, None]).amin(0)

    for layer in range(graph.n_layers):
        mlp = graph.target_mlp(layer)
        reached[graph.source_heads(layer)] = from_input(graph.target_heads(layer)).view(3, -1).amin(0)
        reached[graph.source_mlp(layer)] = from_input(slice(mlp, mlp + 1))[0]
    reached[-1] = from_input(slice(graph.logits, None))[0]
    for layer in reversed(range(graph.n_layers)):
        leading[graph.target_mlp(layer)] = rank[graph.source_mlp(layer)].maximum(leading).amin()
        leading[graph.target_heads(layer)] = rank[graph.source_heads(layer)].maximum(leading).amin(1).repeat(3)
    to_logits = torch.full((graph.n_sources + 1,), never, device="cpu")
    to_logits[graph.node_of_target] = leading
    to_logits[0] = rank[0].maximum(leading).amin()
    return reached.maximum(to_logits)


def _cut(n: int, total: int, limit: int | None) -> str:
    """Which edges are in the page; ``limit`` is None for a circuit without scores."""
    if limit is None:
        return "This page was made from a circuit file: it contains only the circuit's edges and their scores."
    if n >= total:
        return f"This file contains the scores of all {total:,} edges, in float32."
    return (
        f"This file contains the {n:,} edges, of {total:,}, that can appear among the first {limit:,} of a selection, "
        "with their scores in float32. Weaker edges were omitted, which changes no circuit in the range of the slider."
    )


def _verdict(report: Report) -> Json:
    """The tests as the page lists them, and the command for those that were not run."""
    missing = [] if report.undone else [name for name in NAMES if name not in report.checks]
    n = report.about.get("examples measured")
    few = type(n) is int and n < FEWEST and not report.undone
    note = (
        f"Not tested here: {', '.join(missing)}. For the whole verdict, in the folder of this page: " if missing else ""
    )
    if few:
        there = "is 1" if n == 1 else f"are {n}"
        note = f"gradpath test needs at least {FEWEST} examples to measure on, and here {there}: find it with more."
    summary = sentence(report.checks) if report.checks else report.summary
    return {
        "checks": [
            {
                "name": name,
                "question": QUESTIONS[name],
                "null_is": NULLS.get(name),  # what ``null`` is called
                "limit": limit_of(name, check),
                **check.to_json(),
            }
            for name, check in ({} if report.undone else report.checks).items()
        ],
        "sentence": summary[0].upper() + summary[1:],
        "note": note,
        "command": TEST if missing and not few else "",
        "effects": report.effects and report.effects.to_json(),
    }


def _inside(inside: Inside) -> Json:
    """What the circuit does on each of the examples."""
    number = {token: at for at, token in enumerate(inside.texts)}
    tokens = [number[token] for token in inside.tokens.flatten().tolist()]
    explanation = inside.explanation
    return {
        "nodes": [_role(role) for role in explanation],
        "answers": explanation.answers
        if inside.answers is not None
        else None,  # names of the correct and the wrong one
        "sources": inside.sources,  # nodes that write
        "heads": inside.heads,
        "edges": packed(inside.circuit.flat, "<u4"),
        "effects": packed(inside.effects, "<f4"),  # (example, edge)
        # For each example (clean, corrupted, circuit; head; query and earlier key).
        "patterns": [packed(pattern, "u1") for pattern in inside.patterns],
        "vocabulary": list(inside.texts.values()),
        "tokens": packed(torch.tensor(tokens, device="cpu"), "<u4"),  # (example, source, token): half are raised
        "logits": packed(inside.logits, "<f4"),  # (example, source, token)
        # (example, source, correct and wrong answer)
        "sides": None if inside.answers is None else packed(inside.answers, "<f4"),
    }


def _role(role: Role) -> Json:
    attends = max(role.attends, key=lambda attends: attends.share, default=None)
    shown = {name: getattr(role, name) for name in ("node", "sentence", "effect", "direct_effect", "scores")}
    told: Json = plain({**shown, "attends": attends and {"from": attends.start, **attends.weights}}, _DIGITS)
    return told


def ranks_and_scores(circuit: Circuit) -> tuple[Tensor, Tensor]:
    """The rank, from 1, and the score of every (source, target), flattened; 0 outside the circuit."""
    ranks = torch.zeros(circuit.graph.n_pairs, dtype=torch.long, device="cpu")
    scores = torch.zeros(circuit.graph.n_pairs, dtype=torch.float32, device="cpu")
    ranks[circuit.flat] = torch.arange(1, len(circuit) + 1, device="cpu")
    scores[circuit.flat] = circuit.scores.cpu()
    return ranks, scores


def packed(values: Tensor, dtype: str) -> str:
    """A column as little-endian numbers in base64."""
    return base64.b64encode(values.numpy().astype(dtype).tobytes()).decode("ascii")


def plain(value: Any, digits: int | None = None) -> Any:
    """A value as strict JSON can represent it: None for NaN, the text of other objects; floats with so many digits."""
    if isinstance(value, float):
        if not isfinite(value):
            return None
        return value if digits is None else float(f"{value:.{digits}g}")
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name), digits) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item, digits) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, digits) for item in value]
    return str(value)


def bibtex(methods: Iterable[str]) -> str:
    """The BibTeX entries to cite for some methods and for gradpath, each once."""
    blocks = asset("citations.bib").replace("VERSION", __version__).strip().split("\n\n")
    entries = dict[str, str]()  # a block is a comment with the names of the methods, and an entry
    for names, _, entry in (block.partition("\n") for block in blocks):
        entries |= dict.fromkeys(names.removeprefix("% ").split(), entry)
    return "\n\n".join(dict.fromkeys(entries[name] for name in [*methods, "gradpath"] if name in entries))


def asset(name: str) -> str:
    """The text of a file in ``report/assets``."""
    return (files("gradpath.report") / "assets" / name).read_text(encoding="utf-8")


Facts = list[tuple[str, str]]  # how scores or a circuit were made: labels and texts
# In order of interest; all others follow.
_NAMES = (
    "model task selection edges_requested method steps options examples metric seed split citation source pairs "
    "changed dtype bos passes seconds cpu_seconds version ablation batch_size d_model plugins weights"
)
_FIRST = _NAMES.split()
_LABELS = {"edges_requested": "Edges requested", "examples": "Examples scored", "citation": "Task from"}
_LABELS |= {"source": "Data from", "changed": "Changed words", "dtype": "Number format", "bos": "BOS token"}
_LABELS |= {"passes": "Passes per batch", "seconds": "Time", "cpu_seconds": "CPU time", "version": "gradpath"}
_LABELS |= {"d_model": "Model width", "plugins": "Plug-ins", "weights": "Digest of the weights", "torch": "PyTorch"}


def about_of(origin: Scores | Circuit) -> Json:
    """How scores or a circuit were made: the recipe, the facts and those about the data, by name."""
    recipe = {} if origin.recipe is None else origin.recipe.recorded
    facts = origin.facts.recorded
    of_data = {name: facts.get("data", {}).get(name) for name in ("citation", "source", "changed")}
    size = {"edges_requested": origin.requested} if isinstance(origin, Circuit) else {}
    return {**recipe, **facts, **of_data, **size, "data": None}


def facts_of(model: str, task: str, about: Mapping[str, Any], further: Mapping[str, Any]) -> Facts:
    """The facts of a run: those recorded with its scores or circuit, and those of the report."""
    facts = {**about, "model": model, "task": task, **further}
    names = [*_FIRST, *(name for name in facts if name not in _FIRST)]
    return [(_label(name), text) for name in names if (text := _text(name, facts.get(name)))]


def facts_of_both(a: Circuit, b: Circuit) -> Facts:
    """The facts of two circuits: one that both have once, others for each."""
    rows = []
    for name in _FIRST:
        one, two = (_text(name, about_of(circuit).get(name)) for circuit in (a, b))
        none = "\N{EN DASH}"
        if one or two:
            rows.append((_label(name), one if one == two else f"A: {one or none} · B: {two or none}"))
    return rows


def _label(name: str) -> str:
    return _LABELS.get(name) or (name[:1].upper() + name[1:]).replace("_", " ")


def _text(name: str, value: Any) -> str:
    if name in ("seconds", "cpu_seconds") and isinstance(value, float):
        return f"{value:.1f} s" if value < 10 else f"{value:,.0f} s"
    if name == "method" and value:
        return method_title(str(value))
    if name == "bos" and value is not None:
        return "yes" if value else "no"
    if name == "plugins" and isinstance(value, Mapping):
        return ", ".join(map(str, value))
    return f"{value:,}" if type(value) is int and name != "seed" else _item(value)


def _item(value: Any) -> str:
    if isinstance(value, Mapping):
        parts = {str(name).replace("_", " "): part for name, part in value.items() if part not in (None, {}, [], "")}
        return ", ".join(f"{name}: {_item(part)}" for name, part in parts.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_item, value))
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def sentences(parts: Iterable[str]) -> str:
    """Parts as sentences; a single one needs no full stop."""
    parts = list(parts)
    return parts[0] if len(parts) == 1 else " ".join(f"{part}." for part in parts)
