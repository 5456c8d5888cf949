"""Run the examples of the README and the guide, and store their numbers beside the results.

python benchmarks/examples.py

``tests/docs/test_numbers.py`` holds both documents to them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gradpath as gp
from gradpath import defaults
from gradpath.study.outcome import commit

OUT = Path(__file__).parents[1] / "docs" / "results" / "examples.json"
MOVERS = ["a23.h0", "a23.h1", "a23.h2", "a23.h7"]
INTO_MOVERS = {head: [f"{head}->{mover}<q>" for mover in MOVERS] for head in ("a20.h0", "a19.h2")}
HEADS = ["a8.h1", "a14.h3", "a9.h2", "a17.h4", "a18.h6", "a20.h0", "a19.h2", *MOVERS, "a24.h4", "a23.h3", "a29.h1"]
TOGETHER = [["a19.h2", "a20.h0"], ["a8.h1", "a14.h3", "a17.h4"], MOVERS]


def numbers(found: Any) -> dict[str, Any]:
    """What a document says of a circuit."""
    result, circuit = found.result, found.circuit
    kept = {"edges": len(circuit), "requested": circuit.requested, "core": len(circuit.core)}
    return {
        **kept,
        "clean": result.clean,
        "corrupted": result.corrupted,
        "metric": result.circuit,
        "faithfulness": result.faithfulness,
        "faithfulness_interval": list(result.interval),
        "error": result.error,
    }


def greater_than(model: Any) -> dict[str, Any]:
    """The README's first example."""
    found = gp.find(model, "greater-than")
    held_out = gp.load_task("greater-than", model, n=defaults.EXAMPLES, split="test")
    top = gp.select(found.scores, n=found.circuit.requested, selection="top")
    larger = found.order.circuit(1448)
    results = {"top": gp.evaluate(model, top, held_out), "larger": gp.evaluate(model, larger, held_out)}
    others = {name: [result.faithfulness, result.error] for name, result in results.items()}
    return numbers(found) | others | {"larger_edges": len(larger)}


def indirect_object(model: Any) -> dict[str, Any]:
    """The circuit of the README and the guide, what its nodes do, and what patching them does."""
    found = gp.find(model, "ioi", examples=50)
    many, held_out = (gp.load_task("ioi", model, n=n, split="test") for n in (100, 50))
    train = gp.load_task("ioi", model, n=50, split="train")
    mean = gp.evaluate(model, found.circuit, held_out, ablation="mean", mean_over=train)
    effects = {role.node: [role.effect, role.direct_effect] for role in gp.explain(model, found.circuit, many)}
    patches = [({"nodes": [head]}, head) for head in HEADS]
    patches += [({"nodes": heads}, " ".join(heads)) for heads in TOGETHER]
    patches += [({"edges": edges}, f"{head} into movers") for head, edges in INTO_MOVERS.items()]
    lost = {}
    for what, name in patches:
        result = gp.patch(model, held_out, **what)
        drops = [row.clean - row.circuit for row in result.to_pandas().itertuples()]
        lost[name] = [result.clean - result.circuit, sum(drop > 0 for drop in drops)]
    return numbers(found) | {"mean": [mean.faithfulness, *mean.interval], "effects": effects, "lost": lost}


def main() -> None:
    """Write the numbers."""
    model = gp.load_model("smollm2")
    record = {"commit": commit(), "greater-than": greater_than(model), "ioi": indirect_object(model)}
    OUT.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
