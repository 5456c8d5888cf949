"""What the page knows of single examples, as one JSON object: columns in base64, as in ``payload``."""

from __future__ import annotations

from typing import Any

import torch

from gradpath.explanation.examples import Inside
from gradpath.report.payload import flat_index, packed

_DIGITS = 4  # of the numbers of roles


def inside_payload(inside: Inside) -> dict[str, Any]:
    """The object that the page reads.

    Args:
        inside: What the circuit does on the examples of the report.

    Returns:
        Values that strict JSON can represent.
    """
    number = {token: at for at, token in enumerate(inside.texts)}
    used = inside.tokens.flatten().tolist()
    explanation = inside.explanation
    return {
        "nodes": [_rounded(role.to_json()) for role in explanation],
        "parts": list(explanation.parts),
        "answers": list(explanation.answers) if inside.answers is not None else None,
        "sources": inside.sources,
        "heads": inside.heads,
        "edges": packed(flat_index(inside.circuit), "<u4"),
        "effects": packed(inside.effects, "<f4"),
        "patterns": [packed(pattern, "u1") for pattern in inside.patterns],
        "vocabulary": list(inside.texts.values()),
        "tokens": packed(torch.tensor([number[token] for token in used], device="cpu"), "<u4"),
        "logits": packed(inside.logits, "<f4"),
        "sides": None if inside.answers is None else packed(inside.answers, "<f4"),
    }


def _rounded(value: Any) -> Any:
    """Floats with a few digits: a page has thousands of them."""
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(item) for item in value]
    return value
