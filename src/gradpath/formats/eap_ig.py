"""The ``Graph`` of the EAP-IG library as JSON, also a submission to MIB.

A file is one object::

    cfg    n_layers, n_heads, parallel_attn_mlp, d_model
    nodes  name -> in_graph
    edges  name -> score, in_graph              every edge of the model, such as a0.h3->a5.h1<k>

It has scores of all edges and a circuit at once; graph, names and sign are the same as in gradpath. If there is
only a circuit, edges outside it are written with score 0. A node is in if an edge of the circuit enters it and
one leaves it. How scores and circuit were made, and the order of the edges, go under a further key ``gradpath``,
which the library ignores. Files with a selection of neurons are refused.

MIB's submission is a folder per task and model, with importances of all edges or with nine circuits::

    SUBMISSION/ioi_gpt2/importances.json       the scores of all edges: MIB ranks by them
    SUBMISSION/ioi_gpt2/circuit_0.1.json ...   or circuits with at most 0.1, 0.2, 0.5, 1, 2, 5, 10, 20 and 50% of them

Its leaderboard takes submissions of at least two tasks and two models: convert into the same folder several times,
then push it to the hub.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gradpath.circuit import Circuit
from gradpath.errors import InputError, UsageError, warn
from gradpath.evaluation.mib import FRACTIONS, edges_at
from gradpath.formats.edges import Content
from gradpath.graph import Graph, graph_from_json
from gradpath.recipe import Recipe, read_record
from gradpath.runtime.files import write_atomically, write_together
from gradpath.scores import Scores

NOTES = "gradpath"
_SHAPE = ("n_layers", "n_heads", "parallel_attn_mlp", "d_model")
# Of MIB's leaderboard.
MIB_TASKS = ("ioi", "mcqa", "arithmetic-addition", "arithmetic-subtraction", "arc-easy", "arc-challenge")
MIB_MODELS = {
    "gpt2": "gpt2",
    "openai-community/gpt2": "gpt2",
    "Qwen/Qwen2.5-0.5B": "qwen2.5",
    "google/gemma-2-2b": "gemma2",
    "meta-llama/Llama-3.1-8B": "llama3",
}


def eap_ig_text(content: Content, d_model: int | None = None) -> str:
    """The text of a file that ``eap.graph.Graph.from_json`` reads."""
    graph, circuit = content.graph, content.circuit
    values = torch.zeros(graph.n_sources, graph.n_targets, dtype=torch.float32, device="cpu")
    inside = torch.zeros_like(values, dtype=torch.bool)
    if circuit is not None:
        inside = circuit.mask
        values[*circuit.index.T] = circuit.scores
    if content.scores is not None:
        values = content.scores.values.cpu()
    known = [part.facts.d_model for part in (content.scores, circuit) if part is not None]
    width = d_model or next(filter(None, known), None)
    if width is None:
        raise UsageError(
            "a file of the EAP-IG library needs the model's width, which is not recorded here: give it with "
            "--d-model N (d_model=N in Python)."
        )
    shape = dict(zip(_SHAPE, (graph.n_layers, graph.n_heads, graph.parallel, width), strict=True))
    nodes = _nodes(graph, inside)
    pairs = graph.mask.nonzero()
    columns = (column[*pairs.T].tolist() for column in (values, inside))
    edges = {
        graph.edge(*pair): {"score": score, "in_graph": is_in}
        for pair, score, is_in in zip(pairs.tolist(), *columns, strict=True)
    }
    notes = {**content.records, "order": [] if circuit is None else circuit.edges}
    return json.dumps({"cfg": shape, "nodes": nodes, "edges": edges, NOTES: notes}) + "\n"


def _nodes(graph: Graph, inside: Tensor) -> dict[str, dict[str, Any]]:
    """The nodes, each with whether an edge of the circuit enters it and one leaves it."""
    entered = torch.zeros(graph.n_sources + 1, dtype=torch.bool, device="cpu")
    entered[graph.node_of_target[inside.any(0)]] = True
    entered[0] = True  # input, which no edge enters
    is_in = [*(entered[:-1] & inside.any(1)).tolist(), True]  # logits is always in
    return {name: {"in_graph": value} for name, value in zip((*graph.sources, "logits"), is_in, strict=True)}


def eap_ig_content(content: Mapping[str, Any]) -> Content:
    """The scores and the circuit in parsed JSON of the library."""
    graph = _graph(content["cfg"])
    if len(content["edges"]) * 100 < graph.n_edges:  # before memory for all edges is allocated
        raise InputError(
            f"it has scores of {len(content['edges']):,} edges, but its model has {graph.n_edges:,}. It is cut off, or "
            "of another model."
        )
    if any("neurons" in node for node in content["nodes"].values()):
        raise InputError("it selects neurons, but circuits of gradpath consist of edges. Save it without neurons.")
    values = torch.zeros(graph.n_sources, graph.n_targets, dtype=torch.float32, device="cpu")
    inside = torch.zeros_like(values, dtype=torch.bool)
    index = torch.tensor([graph.index(name) for name in content["edges"]], dtype=torch.long, device="cpu")
    edges, pairs = content["edges"].values(), index.view(-1, 2).T
    values[*pairs] = torch.tensor([edge["score"] or 0.0 for edge in edges], device="cpu")  # null: not scored
    inside[*pairs] = torch.tensor([bool(edge["in_graph"]) for edge in edges], device="cpu")
    return _content(graph, values, inside, content)


def _graph(cfg: Any) -> Graph:
    shape = cfg if isinstance(cfg, Mapping) else {}
    return graph_from_json({**shape, "parallel": bool(shape.get("parallel_attn_mlp", False))})


def _content(graph: Graph, values: Tensor, inside: Tensor, file: Any) -> Content:
    """The scores and the circuit, with gradpath's record of them if there is one."""
    notes = file.get(NOTES)
    if not values.isfinite().all():
        raise InputError("a score in it is not a finite number. Attribute again.")
    if notes is None:
        facts = {"d_model": file["cfg"].get("d_model")}
        kept = {"facts": facts, "requested": int(inside.sum()), "pruned": False}
        notes = {"scores": {"facts": facts}, "circuit": kept if inside.any() else None}
    scores = circuit = None
    if notes["scores"] is not None:
        scores = Scores(graph, values, *read_record(notes["scores"]))
    if notes["circuit"] is not None:
        flat = _order(graph, values, inside, notes.get("order", []))
        circuit = Circuit(graph, graph.unflattened(flat), values.flatten()[flat]).with_record(notes["circuit"])
    return Content(scores, circuit)


def _order(graph: Graph, values: Tensor, inside: Tensor, names: list[str]) -> Tensor:
    """The flat positions of the circuit's edges: in the order of the names if they fit, otherwise by |score|."""
    flat = inside.flatten().nonzero()[:, 0]
    index = torch.tensor([graph.index(name) for name in names], dtype=torch.long, device="cpu")
    named = graph.flattened(index.view(-1, 2))
    if torch.equal(named.sort().values, flat):
        return named
    return flat[values.flatten()[flat].abs().sort(descending=True, stable=True).indices]


def write_mib_scores(content: Content, folder: Path, d_model: int | None) -> None:
    """Write the scores of all edges into the folder of their task and model."""
    scores = content.need_scores()
    file = folder / mib_folder(scores.recipe) / "importances.json"
    write_atomically(file, eap_ig_text(Content(scores), d_model))


def mib_sizes(graph: Graph) -> list[int]:
    """The numbers of edges of the nine circuits."""
    return [edges_at(graph, fraction) for fraction in FRACTIONS[:-1]]


def write_mib_circuits(circuits: Sequence[Circuit], folder: Path, d_model: int | None) -> None:
    """Write nine circuits, of ``mib_sizes``, into the folder of their task and model: all or none."""
    with write_together(folder / mib_folder(circuits[0].recipe)) as draft:
        for fraction, circuit in zip(FRACTIONS[:-1], circuits, strict=True):
            write_atomically(draft / f"circuit_{100 * fraction:g}.json", eap_ig_text(Content(circuit=circuit), d_model))


def mib_folder(recipe: Recipe | None) -> str:
    """MIB's name for a task and a model, such as ``arc-easy_llama3``."""
    if recipe is None or not recipe.task or not recipe.model:
        raise InputError(
            "a submission to MIB is filed by task and model, which this file does not record. Give one that find wrote."
        )
    task, model = recipe.task.replace("_", "-"), MIB_MODELS.get(recipe.model)
    if task not in MIB_TASKS or model is None:
        warn(
            f"MIB's leaderboard has no {task} in {recipe.model}: its tasks are {', '.join(MIB_TASKS)}, its models "
            f"{', '.join(dict.fromkeys(MIB_MODELS.values()))}. The file is written, and can be evaluated with MIB's "
            "code."
        )
    model = model or recipe.model.rstrip("/").rpartition("/")[2]
    return re.sub(r"[^\w.-]", "-", f"{task}_{model}")
