"""From a report to ``data.Page``: orders of edges, tests, roles and facts as the page's JSON has them.

A model can have millions of edges, so a run keeps only those that can appear among the first ``LIMIT`` of a selection.
"""

from __future__ import annotations

import base64
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
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
    CheckRow,
    EffectsRow,
    GraphTable,
    InsideTable,
    MethodRun,
    Opened,
    Order,
    Page,
    Report,
    RoleRow,
    Run,
    VerdictTable,
)
from gradpath.report.facts import about_of, facts_of
from gradpath.report.style import method_title
from gradpath.scores import Scores
from gradpath.selection import SELECTIONS, rank
from gradpath.verdict import NAMES, QUESTIONS, sentence
from gradpath.verdict.checks import NULLS, limit_of

LIMIT = 20_000
_KINDS = ("q", "k", "v", "mlp", "logits")
_DIGITS = 4  # of the numbers of roles: a page has thousands of them
_PASSED_ON = ("--data", "--task", "--metric", "--plugin", "--seed")  # from find to test
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
        chosen=Opened(chosen.run, chosen.how, chosen.edges, chosen.pruned, requested, chosen.found),
        examples=report.examples,
        command=report.command,
        bibtex=bibtex((run.origin.recipe and run.origin.recipe.method) or "" for run in report.runs),
        verdict=_verdict(report) if report.checks else None,
        inside=_inside(report.inside) if isinstance(report.inside, Inside) else None,
        no_inside=report.inside if isinstance(report.inside, str) else "",
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
        orders={how: _order(run, how, order, torch.searchsorted(flat, order)) for how, order in flat_orders.items()},
        curve=run.curve,
        recorded=run.origin.facts.recorded,
        facts=facts_of(report.model, report.task, about_of(run.origin), report.about),
        cut=_cut(len(flat), run.graph.n_edges, limit if run.scores is not None else None),
    )


def _order(run: MethodRun, key: str, flat: Tensor, edges: Tensor) -> Order:
    """``flat`` are the positions of the edges in the matrix, ``edges`` those in the run's columns."""
    how, smallest, requested, recipe = key, 1, None, run.origin.recipe
    if key == SAVED:
        assert run.circuit is not None
        how, smallest, recipe = run.circuit.selection or SAVED, run.smallest or 1, run.circuit.recipe
        requested = run.circuit.requested if run.smallest is None else None
    own = key == SAVED and how in (SAVED, *IN_PAGE)  # the page may offer the same selection from the scores
    areas = run.areas.get(how)
    between = (
        "" if areas is None else [f"{low:.2f} to {high:.2f}" for low, high in (areas.cpr_interval, areas.cmd_interval)]
    )
    return Order(
        label="As found" if own else how[:1].upper() + how[1:],
        title="The edges in the order of the saved circuit" if key == SAVED else SELECTIONS[key].about,
        how=how,
        size=len(flat),
        smallest=smallest,
        requested=requested,
        edges=packed(edges, "<u4"),
        connected=packed(connected_from(run.graph, flat), "<u4"),
        recipe=None if recipe is None else recipe.selected(None if how in (SAVED, "nodes") else how).recorded,
        areas="" if areas is None else f"CPR {areas.cpr:.3f} ({between[0]}), CMD {areas.cmd:.3f} ({between[1]})",
    )


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
    checks, effects = report.checks, report.effects
    rows = [
        CheckRow(
            name,
            QUESTIONS[name],
            check.value,
            check.null,
            NULLS.get(name),
            limit_of(name, check),
            check.passed,
            check.decision,
            check.about,
        )
        for name, check in checks.items()
    ]
    missing = [name for name in NAMES if name not in checks]
    command = _test_command(report) if missing else ""
    where = f", with the folder of this page for {_FOLDER}" if _FOLDER in command else ""
    note = f"Not tested here: {', '.join(missing)}. For the whole verdict{where}: " if missing else ""
    summary = sentence(checks)
    names = [field.name for field in fields(EffectsRow)]
    effects_row = None if effects is None else EffectsRow(*(getattr(effects, name) for name in names))
    return VerdictTable(rows, summary[0].upper() + summary[1:], note, command, effects_row)


def _test_command(report: Report) -> str:
    """The ``gradpath test`` of the circuit: its folder, and the options that its file cannot name."""
    options_of_find: dict[str, list[str]] = {}
    words: Iterator[str] = iter(())
    with suppress(ValueError):  # a text from Python that no shell would take
        words = iter(shlex.split(report.command))
    for word in words:
        name, equals, value = word.partition("=")
        if name in ("--out", *_PASSED_ON):
            options_of_find.setdefault(name, []).append(value if equals else next(words, ""))
    if "--data" not in options_of_find:
        options_of_find.pop("--task", None)  # the file names it
        if (recipe := report.runs[report.chosen.run].origin.recipe) and recipe.data:
            options_of_find["--data"] = ["FILE"]
    folder = options_of_find.get("--out", [_FOLDER])[-1]
    options = [part for name in _PASSED_ON for value in options_of_find.get(name, ()) for part in (name, value)]
    file, page = (os.path.join(folder, name) for name in ("circuit.json", "verdict.html"))
    return shlex.join(["gradpath", "test", file, *options, "--out", page])


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


def _role(role: Role) -> RoleRow:
    attends = max(role.attends, key=lambda attends: attends.share, default=None)
    return RoleRow(
        role.node,
        role.sentence,
        plain(role.effect, _DIGITS),
        plain(role.direct_effect, _DIGITS),
        plain(role.scores, _DIGITS),
        [
            plain({name: getattr(x, name) for name in ("name", "effect", "clean", "corrupted")}, _DIGITS)
            for x in role.experts
        ],
        None if attends is None else plain({"from": attends.start, **attends.weights}, _DIGITS),
    )


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
