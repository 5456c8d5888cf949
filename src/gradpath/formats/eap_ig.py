"""The ``Graph`` of the EAP-IG library as JSON: also what MIB's benchmark takes as a submission.

The library's file is one object::

    cfg    n_layers, n_heads, parallel_attn_mlp, d_model
    nodes  name -> in_graph, and score if nodes were scored
    edges  name -> score, in_graph              every edge of the model, such as a0.h3->a5.h1<k>

so it holds the scores of all edges and a circuit at once, with the graph, the names and the sign that
gradpath has too. Of a circuit alone, edges outside of it are written with the score 0. A node is in if it
reads and writes an edge that is; the library itself works that out anew whenever it prunes.

What the library has no place for (how scores and circuit were made, the order of the edges) stands under a
fourth key, ``gradpath``, which it does not look at. Neurons, which it can also choose among, are no edges:
such a file is refused.

The ``Graph`` of the EAP-IG library as a PyTorch file, as its ``to_pt`` writes it and ``from_pt`` reads it.

::

    cfg, src_nodes, dst_nodes                      as in the JSON; names in the order of the tensors
    edges_scores, edges_in_graph                   (source, target)
    nodes_in_graph, nodes_scores                   (source,); the second if nodes were scored

Sources and targets stand in the same order as ours. Such a file can hold code, so it is only ever opened with
``weights_only``: nothing but tensors, numbers, text and containers of them comes in.
"""

from __future__ import annotations

import io
import json
import math
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gradpath.circuit import Circuit
from gradpath.errors import InputError, UsageError
from gradpath.formats.content import Content, check_named, graph_in, parsed
from gradpath.graph import Graph
from gradpath.scores import Scores, checked_about

OURS = "gradpath"
NEURONS = "it chooses among neurons, and gradpath's circuits are made of edges. Save it without them."


@dataclass(frozen=True)
class Exchange:
    """What the library's files hold, whichever way they are written."""

    graph: Graph
    cfg: Mapping[str, Any]
    values: Tensor  # (source, target)
    inside: Tensor  # (source, target): which edges are in the circuit
    node_scores: Mapping[str, float]
    notes: Mapping[str, Any] | None  # ours, if we wrote the file

    @property
    def nodes_inside(self) -> Tensor:
        """Which sources read and write an edge of the circuit; ``input`` needs to read none, (source,)."""
        fed = torch.zeros(self.graph.n_sources + 1, dtype=torch.bool, device="cpu")
        fed[self.graph.node_of_target[self.inside.any(0)]] = True
        fed[0] = True
        return fed[:-1] & self.inside.any(1)


def exchange(content: Content, d_model: int | None = None) -> Exchange:
    """Scores, a circuit or both, as the library has them. Its ``cfg`` needs the width of the model."""
    graph, scores, circuit = content.graph, content.scores, content.circuit
    values = torch.zeros(graph.n_sources, graph.n_targets, dtype=torch.float32, device="cpu")
    inside = torch.zeros_like(values, dtype=torch.bool)
    order: list[str] = []
    if circuit is not None:
        inside, order = circuit.mask, circuit.edges
        values[circuit.index[:, 0], circuit.index[:, 1]] = circuit.scores
    if scores is not None:
        values = scores.values.cpu()
    abouts = [part.about for part in (scores, circuit) if part is not None]
    width = d_model or next((about["d_model"] for about in abouts if about.get("d_model")), None)
    if width is None:
        raise UsageError(
            "a file of the EAP-IG library names the model's width, which is not recorded here: give it with "
            "--d-model N (d_model=N in Python)."
        )
    shape = {"n_layers": graph.n_layers, "n_heads": graph.n_heads, "parallel_attn_mlp": graph.parallel}
    notes = {
        "scores": None if scores is None else dict(scores.about),
        "circuit": None if circuit is None else dict(circuit.about),
        "order": order,
    }
    return Exchange(
        graph=graph,
        cfg={**abouts[0].get("cfg", {}), **shape, "d_model": width},
        values=values,
        inside=inside,
        node_scores=abouts[0].get("node_scores", {}),
        notes=notes,
    )


def content_of(found: Exchange) -> Content:
    """The scores and the circuit of a file of the library."""
    if not found.values.isfinite().all():
        raise InputError("a score in it is not a finite number. Attribute again.")
    if found.notes is None:
        known = ("n_layers", "n_heads", "parallel_attn_mlp", "d_model")
        about: dict[str, Any] = {"d_model": found.cfg.get("d_model")}
        about |= {"cfg": {k: v for k, v in found.cfg.items() if k not in known}} if found.cfg.keys() - known else {}
        about |= {"node_scores": dict(found.node_scores)} if found.node_scores else {}
        origin: Mapping[str, Any] = {"scores": about, "circuit": about if found.inside.any() else None}
    else:
        origin = found.notes
    scores = circuit = None
    if origin["scores"] is not None:
        scores = Scores(found.graph, found.values, checked_about(origin["scores"]))
    if origin["circuit"] is not None:
        flat = _order(found, origin.get("order", []))
        index = torch.stack([flat // found.graph.n_targets, flat % found.graph.n_targets], 1)
        circuit = Circuit(found.graph, index, found.values.flatten()[flat], checked_about(origin["circuit"]))
    return Content(scores, circuit)


def _order(found: Exchange, names: list[str]) -> Tensor:
    """The circuit's edges in the order noted, or, of a file that has none, by |score|: flat positions."""
    inside = found.inside.flatten().nonzero()[:, 0]
    pairs = [found.graph.index(name) for name in names]
    noted = torch.tensor([s * found.graph.n_targets + t for s, t in pairs], dtype=torch.long, device="cpu")
    if torch.equal(noted.sort().values, inside):
        return noted
    size = found.values.flatten()[inside].abs()
    return inside[size.sort(descending=True, stable=True).indices]


def graph_from(cfg: Any) -> Graph:
    """The graph of the library's ``cfg``."""
    shape = cfg if isinstance(cfg, Mapping) else {}
    return graph_in({**shape, "parallel": bool(shape.get("parallel_attn_mlp", False))}, "its cfg")


def eap_ig_text(content: Content, d_model: int | None = None) -> str:
    """The text of a file that ``eap.graph.Graph.from_json`` reads."""
    x = exchange(content, d_model)
    graph, inside = x.graph, [*x.nodes_inside.tolist(), True]  # logits is always in
    nodes: dict[str, dict[str, Any]] = {
        name: {"in_graph": is_in} for name, is_in in zip((*graph.sources, "logits"), inside, strict=True)
    }
    for name, score in x.node_scores.items():
        nodes[name]["score"] = score
    index = graph.mask.nonzero()
    at = index[:, 0], index[:, 1]
    edges = {
        graph.edge(*pair): {"score": score, "in_graph": is_in}
        for pair, score, is_in in zip(index.tolist(), x.values[at].tolist(), x.inside[at].tolist(), strict=True)
    }
    return json.dumps({"cfg": dict(x.cfg), "nodes": nodes, "edges": edges, OURS: x.notes}) + "\n"


def is_eap_ig(content: Any) -> bool:
    return isinstance(content, dict) and {"cfg", "nodes", "edges"} <= content.keys()


def eap_ig_content(content: Mapping[str, Any]) -> Content:
    """The scores and the circuit in what JSON of the library was parsed to."""
    graph = graph_from(content["cfg"])
    nodes = {name: facts for name, facts in content["nodes"].items() if isinstance(facts, Mapping)}
    check_named(graph, len(content["edges"]))
    if any("neurons" in facts for facts in nodes.values()):
        raise InputError(NEURONS)
    values = torch.zeros(graph.n_sources, graph.n_targets, dtype=torch.float32, device="cpu")
    inside = torch.zeros_like(values, dtype=torch.bool)
    index = torch.tensor([graph.index(name) for name in content["edges"]], dtype=torch.long, device="cpu")
    source, target = index.view(-1, 2).T
    edges = content["edges"].values()
    values[source, target] = torch.tensor([x["score"] or 0.0 for x in edges], device="cpu")  # null: unscored
    inside[source, target] = torch.tensor([bool(x["in_graph"]) for x in edges], device="cpu")
    scored = {name: facts["score"] for name, facts in nodes.items() if facts.get("score") is not None}
    return content_of(Exchange(graph, content["cfg"], values, inside, scored, content.get(OURS)))


NEEDED = ("cfg", "src_nodes", "dst_nodes", "edges_scores", "edges_in_graph", "nodes_in_graph")


def eap_ig_bytes(content: Content, d_model: int | None = None) -> bytes:
    """The bytes of a file that ``eap.graph.Graph.from_pt`` reads."""
    x = exchange(content, d_model)
    tensors: dict[str, Any] = {
        "cfg": dict(x.cfg),
        "src_nodes": list(x.graph.sources),
        "dst_nodes": list(x.graph.targets),
        "edges_scores": x.values,
        "edges_in_graph": x.inside,
        "nodes_in_graph": x.nodes_inside,
        OURS: json.dumps(x.notes),
    }
    if x.node_scores:
        scored = [x.node_scores.get(name, math.nan) for name in x.graph.sources]
        tensors["nodes_scores"] = torch.tensor(scored, dtype=torch.float32, device="cpu")
    out = io.BytesIO()
    torch.save(tensors, out)
    return out.getvalue()


def read_eap_ig_pt(file: Path) -> Content:
    """The scores and the circuit in a PyTorch file of the library, none of whose code is run."""
    found = _opened(file)
    missing = [name for name in NEEDED if name not in found]
    if missing:
        raise InputError(f"it has no {', '.join(missing)}: it is no Graph of the EAP-IG library.")
    if "neurons_in_graph" in found:
        raise InputError(NEURONS)
    graph = graph_from(found["cfg"])
    if tuple(found["src_nodes"]) != graph.sources or tuple(found["dst_nodes"]) != graph.targets:
        raise InputError("its nodes are not those of its cfg, or stand in another order.")
    values, inside = found["edges_scores"], found["edges_in_graph"]
    for tensor in (values, inside):
        plain = isinstance(tensor, Tensor) and tensor.layout == torch.strided and not tensor.is_complex()
        if not plain or tensor.shape != graph.mask.shape:
            raise InputError(f"its edges need a plain tensor of shape {tuple(graph.mask.shape)} each.")
    # The library marks whole rows when it chooses nodes, also where there is no edge.
    values, inside = values.float() * graph.mask, inside.bool() & graph.mask
    scores = found.get("nodes_scores")
    named = [] if scores is None else zip(graph.sources, scores.tolist(), strict=True)
    nodes = {name: score for name, score in named if not math.isnan(score)}
    notes = parsed(found[OURS], "it") if OURS in found else None
    return content_of(Exchange(graph, found["cfg"], values, inside, nodes, notes))


def _opened(file: Path) -> dict[str, Any]:
    try:
        _check_compression(file)
        found = torch.load(file, map_location="cpu", weights_only=True)
    except (OSError, InputError):
        raise
    except Exception as problem:  # of many kinds: a file can be broken anywhere
        first = str(problem).strip().partition("\n")[0]
        raise InputError(
            f"it cannot be opened without running code that it may hold ({first}). Save it again as plain "
            "tensors, or as JSON."
        ) from None
    if not isinstance(found, dict):
        raise InputError("it is no Graph of the EAP-IG library.")
    return found


def _check_compression(file: Path) -> None:
    """PyTorch stores, it never compresses; but it unpacks, and a few bytes can unpack to any size."""
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as opened:
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in opened.infolist()):
                raise InputError("it is compressed, which PyTorch's files never are. Save it again.")
