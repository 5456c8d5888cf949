"""Notes on a circuit: names, colours and groups of its nodes, in a file that the page saves::

    {"gradpath_notes": 1, "graph": {...},
     "nodes": {"a20.h0": {"name": "S-inhibition", "colour": "#009e73", "note": "reads the subject's second mention"}},
     "groups": [{"name": "name movers", "colour": "#d55e00", "nodes": ["a23.h0", "a23.h1"], "folded": true}],
     "view": {...}}

``view`` is what the page showed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradpath.errors import InputError, reason
from gradpath.graph import Graph, graph_from_json

FORMAT = 1
_COLOUR = re.compile(r"#[0-9a-fA-F]{6}")


@dataclass(frozen=True)
class NodeNote:
    """The name, colour and remark of a node; each may be empty."""

    name: str = ""
    colour: str = ""
    note: str = ""


@dataclass(frozen=True)
class Group:
    """Nodes that belong together."""

    name: str
    nodes: tuple[str, ...]
    colour: str = ""
    folded: bool = True


@dataclass(frozen=True)
class Notes:
    """Notes on the nodes of one model."""

    nodes: Mapping[str, NodeNote] = field(default_factory=dict)
    groups: tuple[Group, ...] = ()
    view: Mapping[str, Any] = field(default_factory=dict)

    def group_of(self, node: str) -> Group | None:
        return next((group for group in self.groups if node in group.nodes), None)

    def name_of(self, node: str) -> str:
        return self.nodes.get(node, NodeNote()).name

    def colour_of(self, node: str) -> str:
        """The colour of a node, or that of its group; empty if neither has one."""
        group = self.group_of(node)
        return self.nodes.get(node, NodeNote()).colour or (group.colour if group else "")

    def to_json(self, graph: Graph) -> dict[str, Any]:
        """The content of a file of notes."""
        return {
            "gradpath_notes": FORMAT,
            "graph": graph.to_json(),
            "nodes": {node: vars(note) for node, note in self.nodes.items()},
            "groups": [{**vars(group), "nodes": list(group.nodes)} for group in self.groups],
            "view": dict(self.view),
        }


def load_notes(file: str | Path, graph: Graph) -> Notes:
    """Read notes that the page saved, for a circuit of this graph; every node is checked."""
    try:
        return _parsed(json.loads(Path(file).read_text(encoding="utf-8")), graph)
    except FileNotFoundError:
        raise InputError(
            f"there is no file {file}. Save notes in the report, with the button below the drawing."
        ) from None
    except InputError as problem:
        raise InputError(f"{file} cannot be used as notes: {problem}") from None
    except (OSError, ValueError, RecursionError) as problem:
        raise InputError(
            f"{file} cannot be read as notes ({reason(problem)}). Save them again in the report."
        ) from None


def _parsed(content: Any, graph: Graph) -> Notes:
    if not isinstance(content, dict) or content.get("gradpath_notes") != FORMAT:
        raise InputError(f'it has no "gradpath_notes": {FORMAT}. Give a file that the report saved.')
    noted = graph_from_json(content.get("graph"))
    if noted != graph:
        raise InputError(
            f"the notes are of a model with {noted.n_layers} layers of {noted.n_heads} heads, and the circuit is of "
            f"one with {graph.n_layers} layers of {graph.n_heads}. Use notes of the same model."
        )
    nodes, groups = content.get("nodes", {}), content.get("groups", [])
    if not isinstance(nodes, dict) or not isinstance(groups, list):
        raise InputError("its nodes must be an object and its groups a list. Save them again in the report.")
    notes = {_node(node, graph): NodeNote(**_texts(note, ("name", "colour", "note"))) for node, note in nodes.items()}
    view = content.get("view")
    return Notes(notes, _groups(groups, graph), view if isinstance(view, dict) else {})


def _groups(groups: list[Any], graph: Graph) -> tuple[Group, ...]:
    parsed, grouped_nodes = [], set[str]()
    for group in groups:
        if not isinstance(group, dict) or not isinstance(group.get("nodes"), list) or not group.get("nodes"):
            raise InputError(f"a group is an object with a name and a list of nodes: got {group!r}.")
        members = tuple(_node(node, graph) for node in group["nodes"])
        for node in members:
            if node in grouped_nodes:
                raise InputError(f"the node {node!r} is in two groups. Remove it from one of them.")
            grouped_nodes.add(node)
        folded = bool(group.get("folded", True))
        parsed.append(Group(**_texts(group, ("name", "colour")), nodes=members, folded=folded))
    return tuple(parsed)


def _node(node: Any, graph: Graph) -> str:
    if node != "logits":
        graph.source(str(node))
    return str(node)


def _texts(content: Any, names: tuple[str, ...]) -> dict[str, str]:
    """Some values of an object as texts, the colour checked."""
    if not isinstance(content, dict):
        raise InputError(f"a note is an object with a name, a colour and a note: got {content!r}.")
    texts = {name: str(content.get(name) or "") for name in names}
    if texts["colour"] and not _COLOUR.fullmatch(texts["colour"]):
        raise InputError(f"a colour is written #rrggbb: got {texts['colour']!r}.")
    return texts
