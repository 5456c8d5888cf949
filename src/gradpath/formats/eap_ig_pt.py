"""The ``Graph`` of the EAP-IG library as a PyTorch file, as its ``to_pt`` writes it and ``from_pt`` reads it.

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
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gradpath.errors import InputError
from gradpath.formats.content import Content, parsed
from gradpath.formats.eap_ig import NEURONS, OURS, Exchange, content_of, exchange, graph_from

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
