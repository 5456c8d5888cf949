"""Files of other tools: read and write scores and circuits, one module per tool.

>>> sorted(FORMATS)
['circuit', 'dot', 'eap-ig', 'graphml', 'mib', 'neuronpedia', 'scores']

Facts that a format has no field for are added to the file, if it allows that, and restored on reading. Content that a
format cannot represent, such as scores of all edges in a drawing, is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradpath.circuit import Circuit, load_circuit
from gradpath.errors import InputError, UsageError, reason, warn
from gradpath.formats.eap_ig import eap_ig_content, eap_ig_text, write_mib_scores
from gradpath.formats.edges import Content, dot, from_networkx, graphml, read_graphml, to_networkx, to_pandas
from gradpath.formats.neuronpedia import neuronpedia_text
from gradpath.graph import pruned
from gradpath.registry import Registry
from gradpath.runtime.files import write_atomically
from gradpath.scores import Scores, load_scores

__all__ = ["FORMATS", "Content", "Format", "from_networkx", "read", "to_networkx", "to_pandas", "write"]

# What other people's parsers raise on damaged files.
_DAMAGED = (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError)


@dataclass(frozen=True)
class Format:
    """A kind of file.

    Args:
        suffix: How the names of its files end. Of several formats, the longest suffix that fits counts.
        about: One sentence for ``gradpath ls formats``.
        write: A function of the content, the file to write, and the model's width if the user gave it.
        read: A function of the file; None if the format can only be written.
    """

    suffix: str
    about: str
    write: Callable[[Content, Path, int | None], None]
    read: Callable[[Path], Content] | None = None


FORMATS = Registry[Format]("format", [__name__])


def read(file: str | Path) -> Content:
    """Read scores, a circuit or both.

    Args:
        file: The file. Its suffix determines the format; JSON formats are distinguished by their content.

    Returns:
        ``content.scores`` and ``content.circuit``, each None if the file does not have it.
    """
    path = Path(file)
    name = _by_suffix(path, {name: entry for name, entry in FORMATS.items() if entry.read})
    reader = None if name is None else FORMATS[name].read
    if reader is None:
        known = ", ".join(dict.fromkeys(entry.suffix for entry in FORMATS.values() if entry.read))
        raise UsageError(f"{path.name} has no format that can be read. Known, by the suffix: {known}.")
    try:
        content = reader(path)
        _warn_of_loose_edges(content.circuit, path.name)
        return content
    except FileNotFoundError:
        raise InputError(f"there is no file {file}. Check its name.") from None
    except InputError as problem:
        message = str(problem)
        raise InputError(message if str(file) in message else f"{file} cannot be used: {message}") from None
    except _DAMAGED as problem:
        raise InputError(f"{file} cannot be read ({reason(problem)}). It may be cut off or edited by hand.") from None


def _warn_of_loose_edges(circuit: Circuit | None, name: str) -> None:
    """Warn of edges that are on no path from input to logits, in a circuit that another tool selected."""
    if circuit is None or circuit.recipe is not None:
        return
    if loose := len(circuit) - int(pruned(circuit.graph, circuit.mask).sum()):
        warn(
            f"{loose:,} of the {len(circuit):,} edges of {name} are on no path from input to logits. EAP-IG prunes "
            "them before evaluation; gradpath runs the circuit as it is, so the numbers differ with zero or mean "
            "ablation. Prune it in the other tool first, or select a circuit from the scores with --edges."
        )


def write(
    content: Content | Scores | Circuit, file: str | Path, to: str | None = None, *, d_model: int | None = None
) -> None:
    """Write scores, a circuit or both.

    Args:
        content: Scores, a circuit, or ``Content(scores, circuit)``.
        file: The file to write.
        to: The name of the format (``gradpath ls formats``); by default it follows from the suffix of the file.
        d_model: The model's width, for files of the EAP-IG library, if the content does not record it.
    """
    path, content = Path(file), Content.of(content)
    FORMATS[format_of(path, to)].write(content, path, d_model)


def format_of(file: Path, to: str | None = None) -> str:
    """The name of the format to write: ``to``, or the format of the file's suffix."""
    if to is not None:
        FORMATS.find(to)
        return to
    name = _by_suffix(file, FORMATS)
    if name is None:
        known = ", ".join(f"{entry.suffix} ({name})" for name, entry in FORMATS.items())
        raise UsageError(f"{file.name} has no suffix of a format that can be written. Known: {known}.")
    return name


def _by_suffix(file: Path, formats: Mapping[str, Format]) -> str | None:
    """The format with the longest suffix that the file's name ends in."""
    names = [name for name, entry in formats.items() if file.name.lower().endswith(entry.suffix)]
    return max(names, key=lambda name: len(formats[name].suffix), default=None)


def _read_json(file: Path) -> Content:
    content: Any = json.loads(file.read_text(encoding="utf-8"))
    if isinstance(content, dict) and {"cfg", "nodes", "edges"} <= content.keys():
        return eap_ig_content(content)
    return Content(circuit=load_circuit(file))


_BUILT_IN = {
    "circuit": Format(".json", "A circuit of gradpath.", lambda x, file, _: x.need_circuit().save(file), _read_json),
    "scores": Format(
        ".safetensors",
        "Scores of gradpath.",
        lambda x, file, _: x.need_scores().save(file),
        lambda file: Content(load_scores(file)),
    ),
    "eap-ig": Format(
        ".eap-ig.json",
        "A Graph of the EAP-IG library as JSON, also a submission to MIB: scores and a circuit.",
        lambda x, file, d_model: write_atomically(file, eap_ig_text(x, d_model)),
        _read_json,
    ),
    "mib": Format(
        ".mib",
        "A submission to the MIB leaderboard, a folder; written only: scores, or with --selection nine circuits.",
        write_mib_scores,
    ),
    "graphml": Format(
        ".graphml",
        "A circuit for Gephi, yEd and networkx.",
        lambda x, file, _: write_atomically(file, graphml(x.need_circuit())),
        lambda file: Content(circuit=read_graphml(file)),
    ),
    "neuronpedia": Format(
        ".neuronpedia.json",
        "A circuit for the graph viewers of Neuronpedia and circuit-tracer; written only.",
        lambda x, file, _: write_atomically(file, neuronpedia_text(x.need_circuit())),
    ),
    "dot": Format(
        ".dot",
        "A circuit for Graphviz; written only.",
        lambda x, file, _: write_atomically(file, dot(x.need_circuit())),
    ),
}
for _name, _entry in _BUILT_IN.items():
    FORMATS.add(_name, _entry, __name__)
