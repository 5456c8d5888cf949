"""``nap``, ``nap-ig``, ``nap-gp``: the paths of EAP, EAP-IG and EAP-GP with nodes scored instead of edges.

``gradpath.nodes`` has the equation. They cost the same passes, and no contraction.
"""

from __future__ import annotations

from dataclasses import replace

from gradpath.method import METHODS
from gradpath.paths import descent, line  # noqa: F401  (whose paths these are)
from gradpath.paths.registry import find_path

for _name, _edges in {"nap": "eap", "nap-ig": "eap-ig", "nap-gp": "eap-gp"}.items():
    METHODS[_name] = replace(find_path(_edges), name=_name, of="nodes")
