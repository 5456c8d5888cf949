"""Finished work on disk: a cell is one measurement, a small JSON file named after its key.

The key is a dictionary of plain values with everything that the result depends on: the weights, the prompts'
tokens, the method with all its options, the selection, the number of edges. The file contains it as well.
Files are written atomically, so a file that exists is finished, whenever a run was killed.

In a distributed run only the first rank reads and writes, and sends the others what it read: all ranks call the same
methods in the same order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from gradpath.circuit import Circuit, load_circuit
from gradpath.errors import InputError, reason, warn
from gradpath.graph import Graph
from gradpath.runtime import distributed
from gradpath.runtime.files import digest_of, write_atomically
from gradpath.scores import Scores, load_scores

Key = Mapping[str, Any]


def digest(key: Key) -> str:
    """A file name for a key, the same on every machine.

    >>> digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    True
    """
    return sha256(_canonical(key).encode()).hexdigest()[:24]


def _canonical(key: Key) -> str:
    return json.dumps(key, sort_keys=True, separators=(",", ":"))


@dataclass(frozen=True)
class Store:
    """A folder of cells, of scores, and of the orders of edges that circuits were taken from."""

    folder: Path

    def cell(self, key: Key) -> dict[str, Any] | None:
        """The value of a finished cell, or None. A file that is not as it was written counts as unfinished."""

        def read() -> dict[str, Any] | None:
            file = self._cell_file(key)
            try:
                content = json.loads(file.read_text(encoding="utf-8"))
                digest, value = content.pop("digest"), content["value"]
                if digest != digest_of(content) or not isinstance(value, dict):
                    raise ValueError("it was changed after it was written")
                return value if _canonical(content["key"]) == _canonical(key) else None
            except FileNotFoundError:
                return None
            except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
                warn(f"{file} is damaged ({reason(problem)}), so it is measured again.")
                return None

        return distributed.on_first_rank(read)

    def keep_cell(self, key: Key, value: Mapping[str, Any]) -> None:
        content = {"key": key, "value": value}
        text = json.dumps({**content, "digest": digest_of(content)}, indent=1, sort_keys=True)
        distributed.on_first_rank(lambda: write_atomically(self._cell_file(key), text + "\n"))

    def scores(self, key: Key) -> Scores | None:
        """A method's finished scores, or None."""
        scores = self._read_scores(key) if distributed.rank() == 0 else None
        if distributed.world() == 1:
            return scores

        def describe() -> dict[str, Any] | None:
            return None if scores is None else {"graph": asdict(scores.graph), "about": dict(scores.about)}

        description = distributed.on_first_rank(describe)
        if description is None:
            return None
        values = distributed.broadcast_first(torch.empty(0, device="cpu") if scores is None else scores.values)
        return Scores(Graph(**description["graph"]), values, description["about"])

    def _read_scores(self, key: Key) -> Scores | None:
        file = self._scores_file(key)
        try:
            scores = load_scores(file) if file.is_file() else None
        except InputError:
            warn(f"{file} is damaged, so the scores are computed again.")
            return None
        same = scores is not None and _canonical(scores.about.get("key", {})) == _canonical(key)
        return scores if same else None

    def keep_scores(self, key: Key, scores: Scores, seconds: float) -> Scores:
        """Write the scores with their key and the CPU time that they took."""
        scores = replace(scores, about={**scores.about, "key": dict(key), "cpu_seconds": round(seconds, 3)})
        distributed.on_first_rank(lambda: scores.save(self._scores_file(key)))
        return scores

    def keep_order(self, key: Key, order: Circuit) -> None:
        """Keep the order of edges that circuits of several sizes were taken from, unless there is a longer one."""

        def write() -> None:
            stored = self._read_order(key)
            if stored is None or len(stored) < len(order):
                replace(order, about={**order.about, "key": dict(key)}).save(self._order_file(key))

        distributed.on_first_rank(write)

    def order(self, key: Key) -> Circuit | None:
        """An order that was kept, on the first rank; None if there is none that is whole."""
        return self._read_order(key) if distributed.rank() == 0 else None

    def _read_order(self, key: Key) -> Circuit | None:
        file = self._order_file(key)
        try:
            order = load_circuit(file) if file.is_file() else None
        except InputError:
            return None
        same = order is not None and _canonical(order.about.get("key", {})) == _canonical(key)
        return order if same else None

    def has_scores(self, key: Key) -> bool:
        return distributed.on_first_rank(self._scores_file(key).is_file)

    def _cell_file(self, key: Key) -> Path:
        return self.folder / "cells" / f"{key.get('kind', 'cell')}-{digest(key)}.json"

    def _order_file(self, key: Key) -> Path:
        return self.folder / "orders" / f"{key['how']}-{digest(key)}.json"

    def _scores_file(self, key: Key) -> Path:
        return self.folder / "scores" / f"{key.get('method', 'scores')}-{digest(key)}.safetensors"
