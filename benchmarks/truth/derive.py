"""Derive the true edges of all compiled programs, and check them in the models that hide them.

    python benchmarks/truth/derive.py [PROGRAM ...]

The plain model of a program is small enough for every edge and every pair of edges (``true_edges``).
A hidden or curved model computes the same with the same nodes at other places, so its true edges are those, moved.
That is checked here: every edge by itself matters there if it matters by itself in the plain model, and no other does;
and corrupting all other edges together, or random sets of them, changes no example's metric.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch

from gradpath.evaluation import evaluate
from gradpath.paper.compiled import LEVELS, Compiled, layout_of, load_compiled, program_names
from true_edges import CHANGE, true_edges, without

FILE = Path(__file__).parents[2] / "src" / "gradpath" / "paper" / "data" / "truth" / "truth.json"
SETS = 200


def check(compiled: Compiled, kinds: dict[str, str]) -> None:
    """Refuse true edges that do not hold in a larger model."""
    model, task, layout = compiled.model, compiled.all_pairs, layout_of(compiled.program, compiled.level)
    true, edges = {layout.edge(edge): kind for edge, kind in kinds.items()}, model.graph.mask.nonzero().tolist()
    names = [model.graph.edge(*edge) for edge in edges]
    others = [i for i, name in enumerate(names) if name not in true]
    dice = torch.Generator().manual_seed(0)
    sets = [tuple(others)]
    sets += [tuple(i for i in others if torch.rand((), generator=dice) < 0.5) for _ in range(SETS)]
    sets += [(i,) for i in range(len(edges))]
    results = evaluate(model, [without(model.graph, some) for some in sets], task)
    unit = (results[0].clean_values - results[0].corrupted_values).abs().mean()
    change = torch.stack([(x.circuit_values - x.clean_values).abs().max() / unit for x in results])
    assert (change[: SETS + 1] < CHANGE).all(), f"{compiled.name}: other edges matter, {change[: SETS + 1].max():.2g}"
    for name, size in zip(names, change[SETS + 1 :], strict=True):
        expected = name in true and true[name] != "redundant"
        assert (size > CHANGE) == expected, f"{compiled.name}: {name} changes the metric by {size:.2g}"


if __name__ == "__main__":
    facts = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    for name in sys.argv[1:] or program_names():
        begin, plain = time.process_time(), load_compiled(name)
        facts[name] = true_edges(plain.model, plain.all_pairs)
        for level in LEVELS:
            check(load_compiled(name, level), facts[name])
        kinds = [f"{list(facts[name].values()).count(kind)} {kind}" for kind in ("open", "saturated", "redundant")]
        print(f"{name:<14} {plain.model.graph.n_edges:4} edges, true: {', '.join(kinds)};", end=" ")
        print(f"{time.process_time() - begin:.0f} CPU seconds", flush=True)
        FILE.write_text(json.dumps(dict(sorted(facts.items())), indent=1) + "\n", encoding="utf-8")
