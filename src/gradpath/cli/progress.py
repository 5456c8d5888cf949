"""What the user sees: results on stdout, progress and notes on stderr."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from gradpath.errors import printable
from gradpath.runtime import distributed
from gradpath.runtime.progress import write_line

if TYPE_CHECKING:
    from gradpath.circuit import Circuit
    from gradpath.evaluation.result import Result


def print_result(result: str | Mapping[str, Any]) -> None:
    """Print the result on stdout, as text or as one JSON object; of several processes only the first does."""
    if distributed.rank() == 0:
        click.echo(printable(result) if isinstance(result, str) else json.dumps(result, indent=1))


def note(text: str) -> None:
    """Print a message that is not the result on stderr; of several processes only the first does."""
    if distributed.rank() == 0:
        write_line(printable(text))


def numbers_of(circuit: Circuit, result: Result) -> dict[str, Any]:
    """The numbers of a measured circuit, for JSON."""
    return {
        "edges_total": circuit.graph.n_edges,
        "edges_requested": result.edges_requested,
        "edges_kept": result.edges_kept,
        "sparsity": 1 - result.edges_requested / circuit.graph.n_edges,
        "clean": result.clean,
        "corrupted": result.corrupted,
        "circuit": result.circuit,
        "faithfulness": result.faithfulness,
        "faithfulness_interval": result.interval,
        "error": result.error,
        "error_interval": result.error_interval,
        "accuracy": result.accuracy,
        "does_task": result.does_task,
        "clean_minus_corrupted_interval": result.gain_interval,
        "behaviour": result.behaviour,
    }


def lines_of(s: dict[str, Any], n: int) -> list[str]:
    """The same numbers for people, measured on n examples, with a warning where they mean little."""
    from gradpath.evaluation.result import interval_text

    none = "corrupted" if s["ablation"] == "corrupted" else f"all ablated ({s['ablation']})"
    warning = {"yes": "model   ", "unclear": "NOTE    ", "no": "WARNING "}[s["does_task"]]
    return [
        f"  edges         {s['edges_kept']:,} after pruning, {s['edges_requested']:,} requested, "
        f"{s['edges_total']:,} in the model ({s['sparsity']:.2%} sparsity)",
        f"  metric        clean {s['clean']:.3f}, {none} {s['corrupted']:.3f}, circuit {s['circuit']:.3f}",
        f"  faithfulness  {s['faithfulness']:.1%}  ({interval_text(s['faithfulness_interval'], n, '.1%')})",
        f"  error         {s['error']:.3f}  ({interval_text(s['error_interval'], n, '.3f')})",
        f"  {warning}      {s['behaviour']}",
    ]
