"""The numbers of a measured circuit, as every verb gives them: for JSON, and for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradpath.evaluation import Result
    from gradpath.graph import Graph


def numbers(graph: Graph, result: Result, n_spans: int = 1) -> dict[str, Any]:
    """``n_spans``: at how many spans of a prompt each edge could be chosen."""
    n_edges = graph.n_edges * n_spans
    return {
        "edges_total": n_edges,
        "edges_asked": result.edges_asked,
        "edges_kept": result.edges_kept,
        "sparsity": 1 - result.edges_asked / n_edges,
        "clean": result.clean,
        "corrupted": result.corrupted,
        "circuit": result.circuit,
        "faithfulness": result.faithfulness,
        "faithfulness_interval": list(result.interval),
        "error": result.error,
        "error_interval": list(result.error_interval),
    }


def lines(s: dict[str, Any]) -> list[str]:
    """The same for people, with a warning where the numbers mean little."""
    low, high = s["faithfulness_interval"]
    error_low, error_high = s["error_interval"]
    none = "corrupted" if s["ablation"] == "corrupted" else f"all ablated ({s['ablation']})"
    told = [
        f"  edges         {s['edges_kept']:,} after pruning, of {s['edges_asked']:,} asked for "
        f"and {s['edges_total']:,} in all ({s['sparsity']:.2%} sparsity)",
        f"  metric        clean {s['clean']:.3f}, {none} {s['corrupted']:.3f}, circuit {s['circuit']:.3f}",
        f"  faithfulness  {s['faithfulness']:.1%}  (95% interval {low:.1%} to {high:.1%})",
        f"  error         {s['error']:.3f}  (95% interval {error_low:.3f} to {error_high:.3f})",
    ]
    if s["clean"] <= s["corrupted"]:
        told.append(
            "  WARNING       the metric is no higher on the clean prompts than on the corrupted ones: the "
            "model does not do this task, and faithfulness means nothing"
        )
    return told
