"""A circuit in GraphML, for Gephi, yEd and everything else that reads it. networkx does the work."""

from __future__ import annotations

import warnings
from pathlib import Path
from xml.etree.ElementTree import ParseError

from gradpath.circuit import Circuit
from gradpath.errors import InputError
from gradpath.formats.content import optional
from gradpath.formats.digraph import from_networkx, to_networkx


def graphml(circuit: Circuit) -> str:
    """The circuit as the text of a GraphML file."""
    networkx = optional("networkx", "GraphML")
    lines = networkx.generate_graphml(to_networkx(circuit), named_key_ids=True, edge_id_from_attribute="name")
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + "\n".join(lines) + "\n"


def read_graphml(file: Path) -> Circuit:
    """The circuit in a GraphML file of ours, whichever program has saved it since."""
    networkx = optional("networkx", "GraphML")
    try:
        with warnings.catch_warnings():  # of what it makes of a damaged file; all of it is checked below
            warnings.simplefilter("ignore")
            graph = networkx.read_graphml(file)
    except (ParseError, networkx.NetworkXError, KeyError, ValueError) as problem:
        raise InputError(f"{file} cannot be read as GraphML: {problem}. Make it again.") from None
    return from_networkx(graph, str(file))
