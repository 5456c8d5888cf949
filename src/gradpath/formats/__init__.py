"""Other tools' files: scores and circuits to and from them, one file of this package for each.

>>> sorted(FORMATS)
['circuit', 'csv', 'dot', 'eap-ig', 'eap-ig-pt', 'graphml', 'scores']

In Python::

    content = formats.read("importances.json")        # .scores, .circuit: what the file has of them
    formats.write(content, "circuit.graphml")         # the format by the name, or to="graphml"
    circuit.to_networkx(), circuit.to_pandas(), scores.to_pandas()

A file of one format read and written as another keeps all that the other has a place for, and what gradpath
knows besides goes along where the format allows notes. What does not fit at all (scores of all edges into a
drawing, say) is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradpath.circuit import Circuit, load_circuit
from gradpath.errors import InputError, UsageError, reason, unknown
from gradpath.formats.content import Content
from gradpath.formats.eap_ig import eap_ig_bytes, eap_ig_content, eap_ig_text, is_eap_ig, read_eap_ig_pt
from gradpath.formats.graphs import dot, from_networkx, graphml, read_graphml, to_networkx
from gradpath.formats.table import as_content, csv_text, from_pandas, read_csv, to_pandas
from gradpath.runtime.files import write_atomically
from gradpath.scores import Scores, load_scores

__all__ = ["FORMATS", "Content", "from_networkx", "from_pandas", "read", "to_networkx", "to_pandas", "write"]

# What parsers of other people raise when a file is not what it should be.
_DAMAGED = (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError)


@dataclass(frozen=True)
class Format:
    """A kind of file: how its name ends, what it holds, and how it is read and written."""

    suffix: str
    about: str
    write: Callable[[Content, Path, int | None], None]
    read: Callable[[Path], Content] | None = None


def read(file: str | Path) -> Content:
    """The scores and the circuit in a file, by its suffix; JSON by what is in it."""
    path = Path(file)
    reader = next((x.read for x in FORMATS.values() if x.read and path.name.lower().endswith(x.suffix)), None)
    if reader is None:
        known = ", ".join(dict.fromkeys(x.suffix.rpartition(".")[2] for x in FORMATS.values() if x.read))
        raise UsageError(f"{path.name} is in no format that can be read. Known, by the suffix: {known}.")
    try:
        return reader(path)
    except FileNotFoundError:
        raise InputError(f"there is no file {file}.") from None
    except InputError as problem:
        told = str(problem)
        raise InputError(told if str(file) in told else f"{file} cannot be used: {told}") from None
    except _DAMAGED as problem:
        raise InputError(f"{file} cannot be read ({reason(problem)}). It may be cut off or edited by hand.") from None


def write(
    what: Content | Scores | Circuit, file: str | Path, to: str | None = None, *, d_model: int | None = None
) -> None:
    """Write scores, a circuit or both in the format ``to``, or in that of the file's name."""
    path, content = Path(file), as_content(what)
    name = format_of(path, to)
    if content.circuit is not None and content.circuit.spans and name != "circuit":
        raise UsageError(
            f"the circuit has edges at some positions of a prompt, which {name!r} cannot say. Write "
            "circuit.anywhere(), which has the edges wherever they are."
        )
    FORMATS[name].write(content, path, d_model)


def format_of(file: Path, to: str | None = None) -> str:
    """The format that was asked for, or that the file's name ends in: the longest suffix that fits."""
    if to is not None:
        if to not in FORMATS:
            raise unknown("format", to, FORMATS)
        return to
    fits = [name for name, x in FORMATS.items() if file.name.lower().endswith(x.suffix)]
    if not fits:
        known = ", ".join(f"{x.suffix} ({name})" for name, x in FORMATS.items())
        raise UsageError(f"{file.name} names no format that can be written. Known: {known}.")
    return max(fits, key=lambda name: len(FORMATS[name].suffix))


def _read_json(file: Path) -> Content:
    content: Any = json.loads(file.read_text(encoding="utf-8"))
    if is_eap_ig(content):
        return eap_ig_content(content)
    return Content(circuit=load_circuit(file))


def _text(made: Callable[[Circuit], str]) -> Callable[[Content, Path, int | None], None]:
    return lambda content, file, _: write_atomically(file, made(content.need_circuit()))


FORMATS = {
    "circuit": Format(
        ".json", "A circuit of gradpath.", lambda content, file, _: content.need_circuit().save(file), _read_json
    ),
    "scores": Format(
        ".safetensors",
        "Scores of gradpath.",
        lambda content, file, _: content.need_scores().save(file),
        lambda file: Content(scores=load_scores(file)),
    ),
    "eap-ig": Format(
        ".eap-ig.json",
        "A Graph of the EAP-IG library as JSON, also a submission to MIB: scores and a circuit.",
        lambda content, file, d_model: write_atomically(file, eap_ig_text(content, d_model)),
        _read_json,
    ),
    "eap-ig-pt": Format(
        ".pt",
        "A Graph of the EAP-IG library as tensors, read without running code: scores and a circuit.",
        lambda content, file, d_model: write_atomically(file, eap_ig_bytes(content, d_model)),
        read_eap_ig_pt,
    ),
    "graphml": Format(
        ".graphml",
        "A circuit for Gephi, yEd and networkx.",
        _text(graphml),
        lambda file: Content(circuit=read_graphml(file)),
    ),
    "dot": Format(".dot", "A circuit for Graphviz; written only.", _text(dot)),
    "csv": Format(
        ".csv",
        "A table of edges: scores, a circuit or both.",
        lambda content, file, _: write_atomically(file, csv_text(content)),
        read_csv,
    ),
}
