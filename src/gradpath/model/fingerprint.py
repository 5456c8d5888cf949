"""The fields of a model that its fingerprint contains.

A digest of a model hashes the names and values of the fields of its architecture and its layers. So that digests which
were recorded before a field existed remain valid, a field that is added later is marked with ``LATER``, and is left out
where it has its default.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from torch import Tensor

LATER = {"later": True}  # metadata of a field
PARTS = ("experts", "latent")  # fields of a layer that are dataclasses of weights themselves


def known_fields(instance: Any) -> dict[str, Any]:
    """The fields of a dataclass, without those that were added later and have their default."""
    values = {x.name: getattr(instance, x.name) for x in fields(instance)}
    later = {x.name: x.default for x in fields(instance) if x.metadata == LATER}
    at_default = {name for name, x in later.items() if not isinstance(values[name], Tensor) and values[name] == x}
    return {name: x for name, x in values.items() if name not in at_default}


def fields_of(weights: Any) -> dict[str, Any]:
    """The fields of a dataclass of weights, with those of a layer's experts as ``experts.router`` and so on."""
    own = known_fields(weights)
    for part in PARTS:
        if (inner := own.pop(part, None)) is not None:
            own |= {f"{part}.{name}": x for name, x in known_fields(inner).items()}
    return own
