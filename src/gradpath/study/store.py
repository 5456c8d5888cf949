"""The store: a folder of finished measurements.

A cell is one measurement: a small sealed JSON file, named after a digest of its key. The key is a dictionary of plain
values with everything that the result depends on, and is in the file as well. Files are written atomically, so a file
that exists is complete, even if the run was killed. Scores are stored once, in files of their own.

In a distributed run only the first rank reads and writes, and sends its values to the others. All ranks call the same
methods in the same order.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import torch

from gradpath.errors import InputError, reason, warn
from gradpath.evaluation.result import Result
from gradpath.graph import Graph
from gradpath.recipe import read_record, record
from gradpath.runtime import distributed
from gradpath.runtime.files import check_seal, sealed, write_atomically
from gradpath.scores import Scores, load_scores

Key = Mapping[str, Any]
Cell = dict[str, Any]
Value = TypeVar("Value")


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
    """A folder of cells and of scores."""

    folder: Path

    def cell(self, key: Key) -> Cell | None:
        """The value of a finished cell, or None. A file that was changed after it was written is measured again."""

        def read() -> Cell | None:
            file = self._cell_file(key)
            try:
                content = json.loads(file.read_text(encoding="utf-8"))
                check_seal(content)
                value = content["value"]
                if "digest" not in content or not isinstance(value, dict):
                    raise ValueError("it has no digest or no value")
                return value if _canonical(content["key"]) == _canonical(key) else None
            except FileNotFoundError:
                return None
            except (InputError, OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
                warn(f"{file} is damaged ({reason(problem)}), so it is measured again.")
                return None

        return distributed.on_first_rank(read)

    def keep_cell(self, key: Key, value: Mapping[str, Any]) -> None:
        text = json.dumps(sealed({"key": key, "value": value}), indent=1, sort_keys=True)
        distributed.on_first_rank(lambda: write_atomically(self._cell_file(key), text + "\n"))

    def measured(self, key: Key, compute: Callable[[], Mapping[str, Any]]) -> Cell:
        """A cell: as it is stored, or computed now and stored with the CPU seconds that it took."""
        value = self.cell(key)
        if value is None:
            computed, seconds = timed(compute)
            value = {**computed, "cpu_seconds": round(seconds, 3)}
            self.keep_cell(key, value)
        return value

    def scores(self, key: Key) -> Scores | None:
        """Finished scores, or None."""
        scores = self._read_scores(key) if distributed.rank() == 0 else None
        if distributed.world() == 1:
            return scores

        def describe() -> dict[str, Any] | None:
            return None if scores is None else {"graph": asdict(scores.graph), **record(scores.recipe, scores.facts)}

        description = distributed.on_first_rank(describe)
        if description is None:
            return None
        values = distributed.broadcast_first(torch.empty(0, device="cpu") if scores is None else scores.values)
        return Scores(Graph(**description["graph"]), values, *read_record(description))

    def _read_scores(self, key: Key) -> Scores | None:
        file = self._scores_file(key)
        try:
            return load_scores(file) if file.is_file() else None
        except InputError:
            warn(f"{file} is damaged, so the scores are computed again.")
            return None

    def keep_scores(self, key: Key, scores: Scores, seconds: float) -> Scores:
        """Write scores with the CPU time that they took."""
        scores = replace(scores, facts=scores.facts.with_facts(cpu_seconds=round(seconds, 3)))
        distributed.on_first_rank(lambda: scores.save(self._scores_file(key)))
        return scores

    def has_scores(self, key: Key) -> bool:
        return distributed.on_first_rank(self._scores_file(key).is_file)

    def _cell_file(self, key: Key) -> Path:
        return self.folder / "cells" / f"{key['kind']}-{digest(key)}.json"

    def _scores_file(self, key: Key) -> Path:
        return self.folder / "scores" / f"{digest(key)}.safetensors"


def timed(work: Callable[[], Value]) -> tuple[Value, float]:
    """The result of a function, and the CPU seconds it took on all ranks."""
    begin = time.process_time()
    value = work()
    return value, distributed.total_over_ranks(time.process_time() - begin)


def cell_of(result: Result) -> Cell:
    """A circuit's cell: the numbers, and the metric of every example for later comparisons."""

    def decimals(values: torch.Tensor) -> list[float]:
        """float32 as the shortest decimals that give it back."""
        return [float(f"{value:.9g}") for value in values.tolist()]

    names = ("edges_kept", "clean", "corrupted", "circuit", "faithfulness", "error")
    return {
        "edges_requested": result.edges_requested,
        **{name: getattr(result, name) for name in names},
        "faithfulness_interval": result.interval and list(result.interval),
        "error_interval": result.error_interval and list(result.error_interval),
        "values": decimals(result.circuit_values),
        "clean_values": decimals(result.clean_values),
        "corrupted_values": decimals(result.corrupted_values),
    }
