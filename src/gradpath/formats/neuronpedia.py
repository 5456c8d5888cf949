"""An attribution graph for the viewers of Neuronpedia and circuit-tracer, as JSON; written only.

Their nodes are features of transcoders at a position, those of a circuit are heads and MLPs at all positions. So a file
has one position, named after the task, and indices below 0, which no feature has. Edges into the query, key and value
of a head are one link, with their sum as its weight. Names of the notes are labels, and groups are supernodes.
"""

from __future__ import annotations

import json
import re
from typing import Any

from gradpath._version import __version__
from gradpath.circuit import Circuit
from gradpath.graph import Graph, node_of
from gradpath.recipe import Recipe

ABOUT = (
    "A circuit found by gradpath. Nodes are attention heads and MLPs at all positions of many prompts, not features at "
    "one position. The weight of a link is the score of an edge: positive if corrupting it lowers the metric."
)


def neuronpedia_text(circuit: Circuit) -> str:
    """The text of a file that Neuronpedia's graph viewer reads."""
    recipe = circuit.recipe or Recipe()
    model, task = recipe.model or "model", recipe.task or "circuit"
    ids = {node: f"{_layer(circuit.graph, node)}_{_feature(circuit.graph, node)}_0" for node in circuit.nodes}
    weights: dict[tuple[str, str], float] = {}
    for source, target, score in circuit.named_edges():
        ends = ids[source], ids[node_of(target)]
        weights[ends] = weights.get(ends, 0.0) + score
    groups: dict[str, list[str]] = {}
    for node, note in circuit.notes.items():
        if "group" in note:
            groups.setdefault(note["group"], []).append(ids[node])
    metadata = {
        "slug": re.sub(r"[^a-z0-9]+", "-", f"{task}-{model}-{len(circuit)}".lower()).strip("-"),
        "scan": model.rstrip("/").rpartition("/")[2],
        "transcoder_list": [],
        "prompt": task,
        "prompt_tokens": [task],
        "schema_version": 1,
        "info": {"description": ABOUT, "generator": {"name": "gradpath", "version": __version__}},
        "generation_settings": recipe.recorded,
    }
    params = {"pinnedIds": list(ids.values()), "supernodes": [[name, *nodes] for name, nodes in groups.items()]}
    content = {
        "metadata": metadata,
        "qParams": {**params, "linkType": "both", "clickedId": "", "sg_pos": ""},
        "nodes": [_node(circuit, node, ids[node]) for node in circuit.nodes],
        "links": [{"source": a, "target": b, "weight": weight} for (a, b), weight in weights.items()],
    }
    return json.dumps(content, indent=1) + "\n"


def _layer(graph: Graph, node: str) -> str:
    return "E" if node == "input" else str(graph.layer_of(node))


def _feature(graph: Graph, node: str) -> int:
    """An index that no feature has: heads from -1 down, then the MLP."""
    return -1 - (0 if node in ("input", "logits") else graph.place_of_source(graph.source(node))[1])


def _node(circuit: Circuit, node: str, name: str) -> dict[str, Any]:
    """A node as the viewers expect it. They read a probability from the label of a logit, so that one has no label."""
    kinds = {"input": "embedding", "logits": "logit"}
    own = circuit.notes.get(node, {}).get("name")
    return {
        "node_id": name,
        "jsNodeId": name,
        "feature": _feature(circuit.graph, node),
        "layer": _layer(circuit.graph, node),
        "ctx_idx": 0,
        "reverse_ctx_idx": 0,
        "run_idx": 0,
        "feature_type": kinds.get(node, "mlp" if node.startswith("m") else "attention head"),
        "clerp": "" if node == "logits" else f"{own} ({node})" if own else node,
        "token_prob": 0.0,
        "is_target_logit": node == "logits",
    }
