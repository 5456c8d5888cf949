"""Notes on a circuit: names, colours and groups of its nodes, in a file that the page saves::

    {"gradpath_notes": 1, "graph": {...},
     "nodes": {"a20.h0": {"name": "S-inhibition", "colour": "#009e73", "note": "reads the subject's second mention"}},
     "groups": [{"name": "name movers", "colour": "#d55e00", "nodes": ["a23.h0", "a23.h1"], "folded": true}],
     "view": {...}}

``view`` is what the page showed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from gradpath.errors import InputError, reason
from gradpath.graph import Graph, graph_from_json

FORMAT = 1
Colour = Annotated[str, Field(pattern=r"^(#[0-9a-fA-F]{6})?$")]  # or empty


@dataclass(frozen=True)
class NodeNote:
    """The name, colour and remark of a node; each may be empty."""

    name: str = ""
    colour: Colour = ""
    note: str = ""


@dataclass(frozen=True)
class Group:
    """Nodes that belong together."""

    name: str
    nodes: Annotated[tuple[str, ...], Field(min_length=1)]
    colour: Colour = ""
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
    parts = {name: content[name] for name in ("nodes", "groups", "view") if name in content}
    try:
        notes = TypeAdapter(Notes).validate_python(parts)
    except ValidationError as problem:
        error = problem.errors(include_url=False)[0]
        place, got = ".".join(map(str, error["loc"])), error["input"]
        raise InputError(f"{place}: {error['msg']}: got {got!r}. Save them again in the report.") from None
    members = Counter(node for group in notes.groups for node in group.nodes)
    for node in {*notes.nodes, *members} - {"logits"}:
        graph.source(node)
    if twice := [node for node, n in members.items() if n > 1]:
        raise InputError(f"the node {twice[0]!r} is in two groups. Remove it from one of them.")
    return notes
