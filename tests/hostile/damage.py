"""Ways to damage a file: anywhere in its bytes, or inside of a structure that stays well formed."""

from __future__ import annotations

import copy
import json
import re
import struct
from typing import Any

from hypothesis import strategies as st

DEEP = "@deep@"  # stands for nesting deeper than any parser's stack
DUPLICATE = "@again@"  # stands for a name that comes twice

ODD_NUMBERS: list[Any] = [0, -1, 1, 2**31, 2**63, 2**64, 10**400, 9_999, 1e-320, 1e39, -1e308, 0.5, True]
ODD_NUMBERS += [float("nan"), float("inf"), float("-inf")]
ODD_TEXTS = ["", " ", "\0", "\ud800", "../../../etc/passwd", "/dev/zero", "a0.h0->", "->", "input->logits"]
ODD_TEXTS += ["a0.h0->a0.h0<q>", "a99999999999.h1->m0", "é\u202e\U0001f9ff", "x" * 5_000, "1e999", "\n", "null"]
ODD_SHAPES: list[Any] = [None, [], {}, [[]], [1, 2, 3], {"a": 1}, ["input->logits", 1.0], DEEP, DUPLICATE]

odd_values = st.one_of(
    st.sampled_from(ODD_NUMBERS),
    st.sampled_from(ODD_TEXTS),
    st.sampled_from(ODD_SHAPES),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=20),
)


@st.composite
def damaged_bytes(draw: Any, whole: bytes) -> bytes:
    """One to three injuries: cut off, overwritten, a bit turned, a piece out, in or twice, a huge size."""
    found = bytearray(whole)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, max(len(found) - 1, 0)))
        length = draw(st.integers(1, 64))
        match draw(st.sampled_from(["cut", "over", "bit", "out", "in", "twice", "size", "text"])):
            case "cut":
                del found[at:]
            case "over":
                found[at : at + length] = draw(st.binary(min_size=length, max_size=length))
            case "bit" if found:
                found[at] ^= 1 << draw(st.integers(0, 7))
            case "out":
                del found[at : at + length]
            case "in":
                found[at:at] = draw(st.binary(min_size=1, max_size=64))
            case "twice":
                found[at:at] = found[at : at + length]
            case "size":
                large = draw(st.sampled_from([2**16, 2**31, 2**40, 2**62, 2**64 - 1]))
                found[at : at + 8] = struct.pack("<Q", large)
            case "text":
                found[at : at + 1] = draw(st.sampled_from(ODD_TEXTS)).encode("utf-8", "surrogatepass")
    return bytes(found)


@st.composite
def damaged_tree(draw: Any, tree: Any) -> Any:
    """A copy with one to three of its values, anywhere in it, replaced, gone, or there twice."""
    changed = json.loads(json.dumps(tree))
    for _ in range(draw(st.integers(1, 3))):
        box = changed
        while isinstance(box, (dict, list)) and box:  # down to a random place
            keys = list(box) if isinstance(box, dict) else list(range(len(box)))
            key = draw(st.sampled_from(keys))
            if not isinstance(box[key], (dict, list)) or not box[key] or draw(st.integers(0, 3)) == 0:
                _replace(draw, box, key)
                break
            box = box[key]
    return changed


def _replace(draw: Any, box: Any, key: Any) -> None:
    match draw(st.sampled_from(["odd", "odd", "odd", "gone", "twice", "renamed"])):
        case "gone":
            del box[key]
        case "twice" if isinstance(box, list):
            box.append(box[key])
        case "twice":
            box[DUPLICATE + str(key)] = box[key]
        case "renamed" if isinstance(box, dict):
            box[draw(st.sampled_from(ODD_TEXTS))] = box.pop(key)
        case _:
            box[key] = copy.deepcopy(draw(odd_values))  # it may be damaged further


def as_json(tree: Any) -> bytes:
    """The JSON text of a damaged tree, with what no JSON library would write put in."""
    text = json.dumps(tree).replace(DUPLICATE, "")
    return text.replace(f'"{DEEP}"', "[" * 100_000 + "]" * 100_000).encode("utf-8", "surrogatepass")


@st.composite
def damaged_text(draw: Any, whole: str) -> bytes:
    """A text file with some of its words, cells or lines replaced."""
    pieces = re.split(r'([\s,"<>=|]+)', whole)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(pieces) - 1))
        odd = draw(odd_values)
        pieces[at] = "[" * 50_000 if odd == DEEP else pieces[at] * 2 if odd == DUPLICATE else str(odd)
    return "".join(pieces).encode("utf-8", "surrogatepass")
