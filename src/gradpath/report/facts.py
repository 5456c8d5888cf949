"""How scores or a circuit were made, as the labels and texts that the page lists."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gradpath.circuit import Circuit
from gradpath.report.style import method_title
from gradpath.scores import Scores

Facts = list[tuple[str, str]]
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
    n, kept, rows, layout = (data.get(name) for name in ("n", "kept", "rows_read", "layout"))
    told = []
    if type(rows) is int and type(kept) is int:
        told.append(f"{kept:,} of {rows:,} rows{', with others held out' if data.get('held_out') else ''}")
    if type(n) is int and type(kept) is int and kept != n:
        told.append(f"{kept:,} of {n:,} requested")
    if isinstance(layout, str) and layout != "own":
        told.append(f"Layout: {layout}")
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
