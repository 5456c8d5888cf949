"""``Circuit``: a set of a model's edges and how they were found, its JSON file, and comparisons of two circuits."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from gradpath import defaults
from gradpath.errors import InputError, UsageError, check_names
from gradpath.graph import Graph, graph_from_json, node_of
from gradpath.recipe import Facts, Recipe, read_record, record
from gradpath.runtime.files import check_seal, read_json, write_atomically, write_rows
from gradpath.scores import LISTED, Shown, listed

if TYPE_CHECKING:
    from gradpath.model.transformer import Transformer

FORMAT = 2
NOTE_PARTS = ("name", "group", "note", "colour")  # of a node
_LARGEST_SCORE = torch.finfo(torch.float32).max


@dataclass(frozen=True, eq=False, repr=False)
class Circuit(Shown):
    """A set of edges, in the order in which they were selected, with their scores.

    ``len``, ``in``, iteration, ``&``, ``|``, ``-``, ``<=``, ``==`` and ``hash`` work as on a set of edges: order and
    scores do not count. The result of ``&``, ``|`` and ``-`` has the order and the scores of the left circuit, and is
    not pruned.

    >>> graph = Graph(n_layers=1, n_heads=1)
    >>> a = Circuit.from_edges(graph, ["input->m0", "m0->logits"])
    >>> b = Circuit.from_edges(graph, ["m0->logits", "input->logits"])
    >>> "input->m0" in a, list(a & b), len(a | b), a - b == a.without("m0->logits")
    (True, ['m0->logits'], 3, True)

    Args:
        graph: The model's graph.
        index: The (source, target) of each edge.
        scores: The score of each edge.
        recipe: How the circuit was found; None if that is not known.
        facts: What was observed meanwhile.
        n_requested: The number of edges before pruning, if that is recorded.
        pruned: Whether edges that are on no path from ``input`` to ``logits`` were removed.
        frequency: How often each edge is in the circuits of this size that resamples of the examples give, as a share
            of the resamples; None if the circuit is not a consensus of resamples.
        notes: What you write on nodes, such as ``circuit.notes["a5.h1"] = {"group": "name movers"}``: a ``name``, a
            ``group``, a ``note`` and a ``colour`` (#rrggbb), each optional. Files and drawings have them; notes on
            nodes without an edge in the circuit are dropped.
    """

    _kind = "circuit"
    graph: Graph
    index: Int[Tensor, "edge 2"]
    scores: Float[Tensor, " edge"]
    recipe: Recipe | None = None
    facts: Facts = Facts()
    n_requested: int | None = None
    pruned: bool = False
    frequency: Float[Tensor, " edge"] | None = None
    notes: dict[str, dict[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "notes", self._checked(self.notes))  # a copy: circuits do not share what may change

    @classmethod
    def from_edges(cls, model: Transformer | Graph, names: Iterable[str]) -> Circuit:
        """Make a circuit of named edges. It is not pruned, and its scores are 0.

        Args:
            model: The model, or its graph.
            names: The names of the edges, such as ``a0.h1->m3``. Each is checked.

        Returns:
            The circuit, with its edges in this order.
        """
        check_names("edges", names)
        graph = model if isinstance(model, Graph) else model.graph
        recipe = Recipe(model=None if isinstance(model, Graph) else model.name, selection="named edges")
        return replace(circuit_by_names(graph, [(name, 0.0) for name in names]), recipe=recipe)

    @classmethod
    def of_mask(cls, graph: Graph, mask: Bool[Tensor, "source target"], recipe: Recipe | None = None) -> Circuit:
        """A circuit of the edges of a mask, by source, then by target. It is not pruned, and its scores are 0."""
        index = mask.nonzero()
        return cls(graph, index, torch.zeros(len(index), device="cpu"), recipe)

    def __repr__(self) -> str:
        return f"<Circuit of {len(self):,} edges: {self.recipe or 'not recorded'}>"

    def __str__(self) -> str:
        title = f"Circuit of {len(self):,} edges between {len(self.nodes):,} nodes"
        if self.requested != len(self):
            title += f", {self.requested:,} requested"
        title += f"; the model has {self.graph.n_edges:,} edges"
        if self.core is not None:
            title += f"\n  {self.steadiness}"
        best = self.scores.abs().sort(descending=True, stable=True).indices[:LISTED].tolist()
        edges = listed([self.edges[i] for i in best], self.scores[best].tolist())
        return "\n".join([title, f"  found on   {self.recipe or 'not recorded'}", *edges])

    def __len__(self) -> int:
        return len(self.index)

    def __iter__(self) -> Iterator[str]:
        return iter(self.edges)

    def __contains__(self, edge: object) -> bool:
        return edge in self._names

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Circuit):
            return NotImplemented
        return self.graph == other.graph and self._positions == other._positions

    def __hash__(self) -> int:
        return hash((self.graph, self._positions))

    def __le__(self, other: Circuit) -> bool:
        """Whether all edges are in the other circuit, too."""
        return bool(torch.isin(self.flat, self._flat_of(other)).all())

    def __and__(self, other: Circuit) -> Circuit:
        """The edges that are in both."""
        return self._part(torch.isin(self.flat, self._flat_of(other)), "intersection", other)

    def __sub__(self, other: Circuit) -> Circuit:
        """The edges that are not in the other circuit."""
        return self._part(~torch.isin(self.flat, self._flat_of(other)), "difference")

    def __or__(self, other: Circuit) -> Circuit:
        """The edges of this circuit, then those that only the other one has."""
        new = ~torch.isin(self._flat_of(other), self.flat)
        index, scores = torch.cat([self.index, other.index[new]]), torch.cat([self.scores, other.scores[new]])
        return self._by_hand("union", other, index=index, scores=scores, frequency=None)

    def without(self, *names: str) -> Circuit:
        """Remove some nodes or edges. The circuit is not pruned again.

        Args:
            *names: Edges (``a0.h1->m3``), nodes (``a0.h1``, with all their edges), or the query, key or value of a head
                (``a5.h1<k>``, with the edges into it). Names that the circuit does not have are ignored; names that
                the model does not have are an error.

        Returns:
            The circuit of the other edges.
        """
        keep = torch.ones(len(self), dtype=torch.bool, device="cpu")
        for name in names:
            keep &= ~self._edges_named(name)
        return self._part(keep, "without " + ", ".join(names))

    def compare(self, other: Circuit) -> Comparison:
        """Compare with another circuit of the same model: which edges and nodes both have."""
        self._flat_of(other)
        return Comparison(self, other)

    def _edges_named(self, name: str) -> Bool[Tensor, " edge"]:
        """Which edges a name means. It is the name of an edge, a node, or a head's query, key or value."""
        sources, targets = self.index.unbind(1)
        if "->" in name:
            source, target = self.graph.index(name)
            return (sources == source) & (targets == target)
        nodes = (*self.graph.sources, "logits")
        if name in self.graph.targets and name not in nodes:
            return targets == self.graph.targets.index(name)
        if name not in nodes:
            raise InputError(
                f"a model with {self.graph.n_layers} layers of {self.graph.n_heads} heads has no node or edge "
                f"{name!r}: write a node as a0.h1, m0, input or logits, and an edge as a0.h1->m0."
            )
        node = nodes.index(name)
        return (sources == node) | (self.graph.node_of_target[targets] == node)

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(self.edges)

    @property
    def flat(self) -> Int[Tensor, " edge"]:
        """The positions of the edges in the flattened (source, target) matrix: one number for each edge."""
        return self.graph.flattened(self.index)

    @cached_property
    def _positions(self) -> frozenset[int]:
        return frozenset(self.flat.tolist())

    def _flat_of(self, other: Circuit) -> Int[Tensor, " edge"]:
        """The edges of another circuit, if it is of the same graph."""
        if not isinstance(other, Circuit):
            raise UsageError(
                f"a circuit can be combined with another circuit: got {type(other).__name__}. "
                "Make one from names with gp.Circuit.from_edges(model, names)."
            )
        if self.graph != other.graph:
            names = [circuit.recipe and circuit.recipe.model for circuit in (self, other)]
            raise InputError(
                "circuits can be compared or combined if their models have the same shape: "
                f"{names[0] or 'the first'} has {self.graph.shape}, {names[1] or 'the second'} has {other.graph.shape}."
            )
        return other.flat

    def _part(self, keep: Bool[Tensor, " edge"], how: str, other: Circuit | None = None) -> Circuit:
        """Some of the edges; ``how`` is for the record."""
        frequency = None if self.frequency is None else self.frequency[keep]
        return self._by_hand(how, other, index=self.index[keep], scores=self.scores[keep], frequency=frequency)

    def _by_hand(self, how: str, other: Circuit | None, **edges: Any) -> Circuit:
        """Other edges, with a record of how they were put together and of what holds for both circuits."""
        recipe, facts, notes = self.recipe or Recipe(), self.facts, self.notes
        if other is not None:
            notes = {**other.notes, **notes}
            theirs = (other.recipe or Recipe()).recorded
            recipe = Recipe(**{name: value for name, value in recipe.recorded.items() if theirs.get(name) == value})
            facts = facts if facts == other.facts else Facts()
        made: dict[str, Any] = {
            "recipe": recipe.selected(how),
            "facts": facts,
            "notes": notes,
            "n_requested": None,
            "pruned": False,
        }
        return replace(self, **made, **edges)

    @cached_property
    def edges(self) -> list[str]:
        """The names of the edges in the order of selection."""
        return [self.graph.edge(source, target) for source, target in self.index.tolist()]

    @cached_property
    def mask(self) -> Bool[Tensor, "source target"]:
        """The mask of the circuit's edges, (source, target). Copy it before you change it."""
        return self.graph.mask_of(self.flat).view_as(self.graph.mask)

    @property
    def requested(self) -> int:
        """The number of edges that were requested, before pruning."""
        return len(self) if self.n_requested is None else self.n_requested

    @property
    def ablation(self) -> str:
        """How edges outside the circuit were replaced when it was found."""
        return defaults.ABLATION if self.recipe is None else self.recipe.ablation

    @property
    def selection(self) -> str:
        """How the edges were selected; empty if that is not recorded."""
        return "" if self.recipe is None else self.recipe.selection or ("nodes" if self.recipe.nodes else "")

    def named_edges(self) -> Iterator[tuple[str, str, float]]:
        """Each edge as the names of its source and target, and its score."""
        for (source, target), score in zip(self.index.tolist(), self.scores.tolist(), strict=True):
            yield self.graph.sources[source], self.graph.targets[target], score

    @property
    def core(self) -> Circuit | None:
        """The edges that every resample of the examples has; None if the circuit is not a consensus of resamples."""
        return None if self.frequency is None else self._part(self.frequency == 1, "in every resample")

    @property
    def steadiness(self) -> str:
        """How many of the edges every resample has, in words; empty if the circuit is not a consensus of resamples."""
        return "" if self.core is None else f"{len(self.core):,} of {len(self):,} edges are in every resample"

    @property
    def nodes(self) -> list[str]:
        """The nodes that have an edge in the circuit, from ``input`` to ``logits``."""
        names = {end for source, target, _ in self.named_edges() for end in (source, node_of(target))}
        return [name for name in (*self.graph.sources, "logits") if name in names]

    def to_networkx(self) -> Any:
        """The circuit as a networkx ``MultiDiGraph`` of nodes."""
        from gradpath.formats.edges import to_networkx

        return to_networkx(self)

    def to_pandas(self) -> Any:
        """The edges as a pandas DataFrame with the columns edge, source, target, score, rank and frequency."""
        from gradpath.formats.edges import to_pandas

        return to_pandas(self)

    @property
    def record(self) -> dict[str, Any]:
        """How the circuit was found, and its notes, as files have them; ``with_record`` gives them back."""
        notes = self._checked(self.notes)
        found = {**record(self.recipe, self.facts), "requested": self.requested, "pruned": self.pruned}
        return {**found, "notes": notes} if notes else found

    def with_record(self, content: Mapping[str, Any]) -> Circuit:
        """The same edges with the record of a file, which may contain anything."""
        (recipe, facts), requested, pruned = read_record(content), content.get("requested"), content.get("pruned")
        if type(requested) is not int or requested < len(self) or type(pruned) is not bool:
            raise InputError(f"its 'requested' is {requested!r} and its 'pruned' {pruned!r}. Make it again.")
        notes = self._checked(content.get("notes", {}))
        return replace(self, recipe=recipe, facts=facts, n_requested=requested, pruned=pruned, notes=notes)

    def _checked(self, notes: Any) -> dict[str, dict[str, str]]:
        """A copy of the notes on nodes of the circuit, without empty parts; all are checked."""
        if not isinstance(notes, Mapping):
            raise InputError(f"its notes must be an object with a node for each key: got {notes!r}.")
        kept, present = {}, set(self.nodes) if notes else set()
        for node, note in notes.items():
            if node != "logits":
                self.graph.source(node)
            parts = note if isinstance(note, Mapping) else {"": note}
            if wrong := [part for part, text in parts.items() if part not in NOTE_PARTS or not isinstance(text, str)]:
                known = ", ".join(NOTE_PARTS)
                raise InputError(f"the notes on {node} have {wrong[0]!r}: a note has some of {known}, each a text.")
            if parts.get("colour") and not re.fullmatch("#[0-9a-fA-F]{6}", parts["colour"]):
                raise InputError(f"the colour of {node} is {parts['colour']!r}: write it as #rrggbb, such as #009e73.")
            own = {part: parts[part] for part in NOTE_PARTS if parts.get(part)}
            if own and node in present:
                kept[node] = own
        return kept

    def save(self, file: str | Path) -> None:
        """Write JSON with one edge per line, atomically."""
        head = {"gradpath_circuit": FORMAT, "graph": self.graph.to_json(), **self.record}
        # Nine digits are enough to give every float32 back exactly.
        columns: list[list[Any]] = [self.edges, [float(f"{score:.9g}") for score in self.scores.tolist()]]
        if self.frequency is not None:
            columns.append([round(share, 4) for share in self.frequency.tolist()])
        write_rows(Path(file), head, "edges", list(zip(*columns, strict=True)))


@dataclass(frozen=True)
class Comparison:
    """A comparison of two circuits of the same model. Print it, or use ``.jaccard_edges``, ``.both``, ``.only_a``."""

    a: Circuit
    b: Circuit

    @cached_property
    def both(self) -> Circuit:
        """The edges that both have, with the scores of the first."""
        return self.a & self.b

    @cached_property
    def only_a(self) -> Circuit:
        """The edges that only the first has."""
        return self.a - self.b

    @cached_property
    def only_b(self) -> Circuit:
        """The edges that only the second has."""
        return self.b - self.a

    @property
    def jaccard_edges(self) -> float:
        """The share of the edges of either circuit that both have; 1 for two empty circuits."""
        return _jaccard(*self._sets["edges"])

    @property
    def jaccard_nodes(self) -> float:
        """The share of the nodes of either circuit that both have; 1 for two empty circuits."""
        return _jaccard(*self._sets["nodes"])

    @property
    def by_chance(self) -> float:
        """The number of edges that two random circuits of these sizes share on average."""
        return len(self.a) * len(self.b) / self.a.graph.n_edges

    @cached_property
    def _sets(self) -> dict[str, list[Set[Any]]]:
        """What is compared: the edges, the nodes and, of two consensuses, the edges that every resample has."""
        sides = self.a, self.b
        sets: dict[str, list[Set[Any]]] = {"edges": [x._positions for x in sides], "nodes": [{*x.nodes} for x in sides]}
        cores = [x.core for x in sides]
        return sets if None in cores else sets | {"core": [x._positions for x in cores if x is not None]}

    def to_json(self) -> dict[str, Any]:
        """All numbers as a dictionary."""
        numbers: dict[str, Any] = {}
        for what, (a, b) in self._sets.items():
            numbers |= {f"{what}_a": len(a), f"{what}_b": len(b), f"{what}_both": len(a & b)}
        numbers |= {f"jaccard_{what}": _jaccard(a, b) for what, (a, b) in self._sets.items()}
        return {**numbers, "edges_both_by_chance": self.by_chance}

    def __str__(self) -> str:
        lines = [f"{'':7}{'A':>9}{'B':>9}{'both':>9}{'only A':>9}{'only B':>9}   Jaccard"]
        for what, (a, b) in self._sets.items():
            counts = "".join(f"{len(part):>9,}" for part in (a, b, a & b, a - b, b - a))
            lines.append(f"{what:7}{counts}   {_jaccard(a, b):.3f}")
        if "core" in self._sets:
            lines.append("Core: the edges that every resample of the examples has.")
        chance = f"{self.by_chance:,.0f}" if self.by_chance >= 10 else f"{self.by_chance:.2g}"
        return "\n".join([*lines, f"Two random circuits of these sizes share {chance} edges on average."])

    def report(self, file: str | Path, names: tuple[str, str] | None = None) -> None:
        """Write a page that shows both circuits in one drawing.

        ``names`` are what to call the circuits, such as their files; by default how they were made.
        """
        from gradpath.report.page import render_comparison

        write_atomically(Path(file), render_comparison(self, names))


def _jaccard(a: Set[Any], b: Set[Any]) -> float:
    return len(a & b) / len(a | b) if a or b else 1.0


def circuit_by_names(graph: Graph, edges: Any) -> Circuit:
    """The circuit of a list of (edge name, score) or (edge name, score, frequency), in this order; all are checked."""
    rows: dict[tuple[int, int], tuple[float, ...]] = {}  # by source and target
    if not isinstance(edges, (list, tuple)):
        raise InputError(f"its edges must be a list: got {edges!r}.")
    for edge in edges:
        if not isinstance(edge, (list, tuple)) or len(edge) not in (2, 3) or len(edge) != len(edges[0]):
            raise InputError(f"an edge is a name and a score, and in a consensus a frequency: got {edge!r}.")
        name, *numbers = edge
        index = graph.index(name)
        if index in rows:
            raise InputError(f"the edge {name!r} occurs twice. Remove one of them.")
        for what, number, least, most in zip(
            ("score", "frequency"), numbers, (-_LARGEST_SCORE, 0), (_LARGEST_SCORE, 1), strict=False
        ):
            if not isinstance(number, (int, float)) or not least <= number <= most:
                limits = "a finite number" if what == "score" else "a number from 0 to 1"
                raise InputError(f"the {what} of {name!r} is {number!r}: it must be {limits}.")
        rows[index] = tuple(map(float, numbers))
    indices = torch.tensor(list(rows), dtype=torch.long, device="cpu").view(-1, 2)
    columns = [torch.tensor(x, dtype=torch.float32, device="cpu") for x in zip(*rows.values(), strict=True)]
    scores = columns[0] if columns else torch.zeros(0, device="cpu")
    return Circuit(graph, indices, scores, frequency=columns[1] if len(columns) == 2 else None)


def is_hub_address(file: str | Path) -> bool:
    """Whether this is the address of a circuit on the hub, not a file."""
    return isinstance(file, str) and file.startswith("hf://")


def load_circuit(file: str | Path) -> Circuit:
    """Read the circuit that ``Circuit.save`` wrote; every edge is checked.

    Args:
        file: A ``circuit.json``, the folder that ``gradpath find`` wrote it to, or the address of one on the Hugging
            Face hub, such as ``hf://owner/name``, ``hf://owner/name@revision`` or ``hf://owner/name/folder``.

    Returns:
        The circuit.
    """
    local = file
    if is_hub_address(file):
        from gradpath.formats.hub import download_circuit

        local = download_circuit(str(file))
    elif Path(file).is_dir():
        local = file = Path(file) / "circuit.json"
    elif Path(file).suffix == ".safetensors":
        raise InputError(
            f"{file} has scores, not a circuit. Give a circuit.json, or select a circuit from the scores: "
            f"gradpath convert {file} circuit.json --edges N."
        )
    elif Path(file).suffix == ".html":
        raise InputError(f"{file} is a page, not a circuit. Give the circuit.json that gradpath find wrote beside it.")
    return read_json(local, _parsed, "a gradpath circuit", "a circuit.json that gradpath find wrote", shown=file)


def _parsed(content: Any) -> Circuit:
    if not isinstance(content, dict) or content.get("gradpath_circuit") != FORMAT:
        raise InputError(f'it has no "gradpath_circuit": {FORMAT}. Give a circuit.json that gradpath find wrote.')
    circuit = circuit_by_names(graph_from_json(content["graph"]), content["edges"]).with_record(content)
    check_seal(content)
    return circuit
