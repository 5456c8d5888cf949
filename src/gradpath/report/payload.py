"""From a report to ``data.Page``: orders of edges, tests, roles and facts as the page's JSON has them.

A model can have millions of edges, so a run keeps only those that can appear among the first ``LIMIT`` of a selection.
"""

from __future__ import annotations

import base64
import re
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
from gradpath.errors import InputError, UsageError
from gradpath.explanation import Inside
from gradpath.explanation.roles import Role
from gradpath.graph import Graph, kind
from gradpath.report.data import (
    IN_PAGE,
    READABLE,
    SAVED,
    GraphTable,
    InsideTable,
    MethodRun,
    Order,
    Page,
    Report,
    Run,
    VerdictTable,
)
from gradpath.report.style import method_title
from gradpath.scores import Scores
from gradpath.selection import SELECTIONS, rank
from gradpath.selection.ranking import Sample
from gradpath.verdict import NAMES, QUESTIONS, sentence
from gradpath.verdict.checks import FEWEST, NULLS, limit_of

LIMIT = 20_000
_KINDS = ("q", "k", "v", "mlp", "logits")
MOST_RANKS = 2**16 - 1
_DIGITS = 4  # of the numbers of roles: a page has thousands of them
_OPTION = r"(--(?:out|data|metric|plugin))[ =]('[^']*'|\S+)"  # of ``find``, passed on to ``test``
_FOLDER = "FOLDER"  # where a command did not name the folder that the page is in


def page_of(report: Report, limit: int = LIMIT) -> Page:
    """What the page of a report shows.

    ``limit`` is the largest number of edges that can be selected in the page, if the report needs no more.
    """
    _check(report)
    graph, chosen = report.runs[0].graph, report.chosen
    limit = min(graph.n_edges, max(limit, chosen.edges))
    run = report.runs[chosen.run]
    saved = run.circuit if chosen.how == SAVED and run.smallest is None else None
    requested = chosen.edges if saved is None else saved.requested
    return Page(
        title=report.title,
        model=report.model,
        task=report.task,
        graph=graph_table(graph),
        edges_total=graph.n_edges,
        readable=READABLE,
        runs=[_run(run, limit, report) for run in report.runs],
        chosen=replace(chosen, requested=requested),
        examples=report.examples,
        command=report.command,
        bibtex=bibtex((run.origin.recipe and run.origin.recipe.method) or "" for run in report.runs),
        verdict=_verdict(report) if report.checks or report.summary else None,
        inside=_inside(report.inside) if isinstance(report.inside, Inside) else None,
        no_inside=report.inside if isinstance(report.inside, str) else "",
        small=report.small,
        small_text=report.small_text[:1].upper() + report.small_text[1:],
        notes={} if run.circuit is None else run.circuit.notes,
    )


def _check(report: Report) -> None:
    if not report.runs:
        raise UsageError("a report needs at least one method that was run: got none.")
    for run in report.runs:
        if run.graph != report.runs[0].graph:
            raise InputError(
                "the methods of one report must have run on the same model: "
                f"got {report.runs[0].graph} and {run.graph}. Make one report for each."
            )
        parts = [run.scores.values] if run.scores is not None else []
        parts += [run.circuit.scores] if run.circuit is not None else []
        bad = sum(int((~values.isfinite()).sum()) for values in parts)
        if bad:
            raise InputError(
                f"{bad:,} scores of {run.label} are not finite numbers, so they cannot be ranked or drawn. "
                "Attribute again in float32, or leave out examples with extreme logits."
            )
    chosen = report.chosen
    if not 0 <= chosen.run < len(report.runs):
        raise UsageError(f"run {chosen.run} was chosen, but the report has {len(report.runs)} runs.")
    selections = report.runs[chosen.run].selections
    if chosen.how not in selections:
        raise UsageError(
            f"the page cannot select by {chosen.how!r} here, only by {', '.join(selections)}. "
            f"Give the run that circuit and choose {SAVED!r}."
        )


def graph_table(graph: Graph) -> GraphTable:
    nodes = (*graph.sources, "logits")
    places = [(-1, -1), *map(graph.place_of_source, range(1, graph.n_sources)), (graph.n_layers, -1)]
    layers, columns = zip(*places, strict=True)
    kinds = [_KINDS.index(kind(target)) for target in graph.targets]
    return GraphTable(
        graph.n_layers, graph.n_heads, graph.parallel, nodes, layers, columns, graph.node_of_target.tolist(), kinds
    )


def _run(run: MethodRun, limit: int, report: Report) -> Run:
    flat_orders = {} if run.circuit is None else {SAVED: run.circuit.flat}
    if run.scores is not None:
        values = run.scores.values.detach().cpu().float()
        flat_orders |= {how: rank(Scores(run.graph, values), how, largest=limit).edges for how in IN_PAGE}
    else:
        assert run.circuit is not None
        values = ranks_and_scores(run.circuit)[1]
    flat = torch.unique(torch.cat(list(flat_orders.values())))
    return Run(
        name=method_title(run.label),
        edges=packed(flat, "<u4"),
        scores=packed(values.flatten()[flat], "<f4"),
        sides=None,
        orders={how: _order(run, how, order, flat) for how, order in flat_orders.items()},
        curve=run.curve,
        recorded=run.origin.facts.recorded,
        facts=facts_of(report.model, report.task, about_of(run.origin), report.about),
        cut=_cut(len(flat), run.graph.n_edges, limit if run.scores is not None else None),
    )


def _order(run: MethodRun, key: str, flat: Tensor, columns: Tensor) -> Order:
    """``flat`` are the positions of the order's edges in the matrix, ``columns`` those of all edges of the run."""
    how, smallest, requested, recipe = key, 1, None, run.origin.recipe
    if key == SAVED:
        assert run.circuit is not None
        how, smallest, recipe = run.circuit.selection or SAVED, run.smallest or 1, run.circuit.recipe
        requested = run.circuit.requested if run.smallest is None else None
    own = key == SAVED and how in (SAVED, *IN_PAGE)  # the page may offer the same selection from the scores
    areas = run.areas.get(how)
    named = () if areas is None else (("CPR", areas.cpr, areas.cpr_interval), ("CMD", areas.cmd, areas.cmd_interval))
    return Order(
        label="As found" if own else how[:1].upper() + how[1:],
        title="The edges in the order of the saved circuit" if key == SAVED else SELECTIONS[key].about,
        how=how,
        size=len(flat),
        smallest=smallest,
        requested=requested,
        edges=packed(torch.searchsorted(columns, flat), "<u4"),
        connected=packed(connected_from(run.graph, flat), "<u4"),
        resamples=[packed(_ranks(sample, columns), "<u2") for sample in run.samples] if key == SAVED else [],
        resampled=len(run.samples[0].edges) if run.samples and key == SAVED else 0,
        recipe=None if recipe is None else recipe.selected(None if how in (SAVED, "nodes") else how).recorded,
        areas=", ".join(f"{name} {area:.3f} ({low:.2f} to {high:.2f})" for name, area, (low, high) in named),
    )


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


def _verdict(report: Report) -> VerdictTable:
    """The tests as the page lists them, and the command for those that were not run."""
    rows = [
        {
            "name": name,
            "question": QUESTIONS[name],
            "null_is": NULLS.get(name),
            "limit": limit_of(name, check),
            **check.to_json(),
        }
        for name, check in report.checks.items()
    ]
    missing = [name for name in NAMES if name not in report.checks]
    n = report.about.get("examples measured")
    few = type(n) is int and n < FEWEST
    command = _test_command(report) if missing and not few else ""
    where = f", with the folder of this page for {_FOLDER}" if _FOLDER in command else ""
    note = f"Not tested here: {', '.join(missing)}. For the whole verdict{where}: " if missing else ""
    if few:
        there = "is 1" if n == 1 else f"are {n}"
        note = f"gradpath test needs at least {FEWEST} examples to measure on, and here {there}: find it with more."
    summary = sentence(report.checks) if report.checks else report.summary
    effects = None if report.effects is None else report.effects.to_json()
    return VerdictTable(rows, summary[0].upper() + summary[1:], note, command, effects)


def _test_command(report: Report) -> str:
    """The ``gradpath test`` of the circuit: its folder, and the options that its file cannot name."""
    options = re.findall(_OPTION, report.command)
    recipe = report.runs[report.chosen.run].origin.recipe
    if recipe and recipe.data and not any(name == "--data" for name, _ in options):
        options.append(("--data", "FILE"))
    folder = dict(options).get("--out", _FOLDER)
    passed_on = "".join(f" {name} {value}" for name, value in options if name != "--out")
    return f"gradpath test {folder}/circuit.json{passed_on} --out {folder}/verdict.html"


def _inside(inside: Inside) -> InsideTable:
    number = {token: at for at, token in enumerate(inside.texts)}
    tokens = [number[token] for token in inside.tokens.flatten().tolist()]
    explanation = inside.explanation
    return InsideTable(
        nodes=[_role(role) for role in explanation],
        answers=explanation.answers if inside.answers is not None else None,
        sources=inside.sources,
        heads=inside.heads,
        edges=packed(inside.circuit.flat, "<u4"),
        effects=packed(inside.effects, "<f4"),
        patterns=[packed(pattern, "u1") for pattern in inside.patterns],
        vocabulary=list(inside.texts.values()),
        tokens=packed(torch.tensor(tokens, device="cpu"), "<u4"),
        logits=packed(inside.logits, "<f4"),
        sides=None if inside.answers is None else packed(inside.answers, "<f4"),
    )


def _role(role: Role) -> dict[str, Any]:
    def part(of: Any, *names: str) -> dict[str, Any]:
        return {name: plain(getattr(of, name), _DIGITS) for name in names}

    attends = max(role.attends, key=lambda attends: attends.share, default=None)
    return {
        **part(role, "node", "sentence", "effect", "direct_effect", "scores"),
        "attends": attends and plain({"from": attends.start, **attends.weights}, _DIGITS),
    }


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
_OF_DATA = ("citation", "source", "changed")  # facts about the data with a row of their own
_UNLISTED = ("key", "data")  # listed elsewhere, or a repetition of others


def about_of(origin: Scores | Circuit) -> dict[str, Any]:
    """How scores or a circuit were made: the recipe and the facts by name."""
    recipe = {} if origin.recipe is None else origin.recipe.recorded
    data = {**origin.facts.data, "n": recipe.get("examples")}
    size = {"edges_requested": origin.requested} if isinstance(origin, Circuit) else {}
    return {**recipe, **origin.facts.recorded, "data": data, **size}


def facts_of(model: str, task: str, about: Mapping[str, Any], further: Mapping[str, Any]) -> Facts:
    """The facts of a run: those recorded with its scores or circuit, and those of the report."""
    return [(label, text) for label, text in _texts({**about, "model": model, "task": task}, further).items() if text]


def facts_of_both(a: Circuit, b: Circuit) -> Facts:
    """The facts of two circuits: one that both have once, others for each."""
    texts_a, texts_b = (_texts(about_of(circuit), {}) for circuit in (a, b))
    rows = []
    for label in dict.fromkeys(map(_label, _FIRST)):
        one, two = (texts.get(label) or "\N{EN DASH}" for texts in (texts_a, texts_b))
        if texts_a.get(label) or texts_b.get(label):
            rows.append((label, one if one == two else f"A: {one} · B: {two}"))
    return rows


def _texts(about: Mapping[str, Any], further: Mapping[str, Any]) -> dict[str, str]:
    data = _mapping(about.get("data"))
    facts = {name: data[name] for name in _OF_DATA if name in data} | {"pairs": _pairs(data), **about, **further}
    names = [*_FIRST, *(name for name in facts if name and name not in (*_FIRST, *_UNLISTED))]
    return {_label(name): _text(name, facts[name]) for name in names if facts.get(name) is not None}


def _label(name: str) -> str:
    return _LABELS.get(name) or _capital(name.replace("_", " "))


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _text(name: str, value: Any) -> str:
    if name in ("seconds", "cpu_seconds") and isinstance(value, float):
        return f"{value:.1f} s" if value < 10 else f"{value:,.0f} s"
    if name == "method":
        return method_title(str(value))
    if name == "bos":
        return "yes" if value else "no"
    if name == "plugins" and isinstance(value, Mapping):
        return ", ".join(map(str, value))
    return f"{value:,}" if type(value) is int else _item(value)


def _item(value: Any) -> str:
    if isinstance(value, Mapping):
        parts = {str(name).replace("_", " "): part for name, part in value.items() if part not in (None, {}, [], "")}
        return ", ".join(f"{name}: {_item(part)}" for name, part in parts.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_item, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _pairs(data: Mapping[str, Any]) -> str:
    """Which pairs were used, in sentences, as far as the file records it."""
    n, kept, rows = (data.get(name) for name in ("n", "kept", "rows_read"))
    told = []
    if type(rows) is int and type(kept) is int:
        told.append(f"{kept:,} of {rows:,} rows{', with others held out' if data.get('held_out') else ''}")
    if type(n) is int and type(kept) is int and kept != n:
        told.append(f"{kept:,} of {n:,} requested")
    for reason, drop in _mapping(data.get("dropped")).items():
        count, first = (_mapping(drop).get(name) for name in ("count", "first"))
        pairs = "1 pair" if count in (1, None) else f"{count} pairs"
        told.append(f"{pairs} dropped because {reason}{f', such as {first}' if first else ''}")
    notes = data.get("notes")
    told += [_capital(str(note)) for note in notes if note] if isinstance(notes, list) else []
    return sentences(told)


def sentences(parts: Iterable[str]) -> str:
    """Parts as sentences; a single one needs no full stop."""
    parts = list(parts)
    return parts[0] if len(parts) == 1 else " ".join(f"{part}." for part in parts)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
