"""``gradpath check``: whether a model is computed correctly on this machine.

Six comparisons: the engine's logits with those of ``transformers``; a circuit of all edges with the clean run; a
circuit of no edges with the corrupted run; the scores of some edges, and the run of a circuit, with the slow model of
``reference``; the scores of one batch with those of single examples. With a device, scores and a circuit are also
compared with those on the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradpath import reference
from gradpath.attribution.attribute import attribute
from gradpath.circuit import Circuit
from gradpath.evaluation import evaluate
from gradpath.model.transformer import Transformer
from gradpath.scores import Scores
from gradpath.selection import select
from gradpath.tasks.task import Task, encode

EDGES = 12  # compared with the reference: half of them the strongest, half random
CIRCUIT = 200  # edges of the circuit that is run both ways
METHODS = ("eap", "eap-ig", "eap-gp")  # compared between devices
# The largest relative deviation that rounding through all layers explains.
LIMITS = {torch.float64: 1e-6, torch.float32: 1e-4, torch.bfloat16: 0.3, torch.float16: 0.03}


@dataclass(frozen=True)
class Check:
    """A comparison: its relative deviation, and the largest deviation that passes."""

    what: str
    off: float
    limit: float

    @property
    def passed(self) -> bool:
        return self.off <= self.limit  # False for NaN


def checks(model: Transformer, task: Task, original: Any | None) -> Iterator[Check]:
    """Compare the engine with independent computations; each comparison is yielded when it is done.

    ``original`` is the ``transformers`` model, or None to leave that comparison out.
    """
    limit = LIMITS.get(model.dtype, 0.3)
    # The reference has at least float32, so that a deviation is the engine's and not its rounding.
    dtype = torch.promote_types(model.dtype, torch.float32)
    if original is not None:
        yield Check("logits, against transformers", _logits_off(model, task, original), limit)
    scores = attribute(model, task, "eap-ig", steps=2)
    graph, largest = scores.graph, float(scores.values.abs().max())
    chosen = select(scores, min(CIRCUIT, graph.n_edges))
    all_edges, no_edges = (Circuit(graph, m.nonzero(), scores.values[m]) for m in (graph.mask, graph.mask & False))
    full, empty, part = evaluate(model, [all_edges, no_edges, chosen], task)
    size = float((full.clean_values - full.corrupted_values).abs().mean())
    off = _largest(full.circuit_values - full.clean_values) / size
    yield Check("a circuit of all edges, against the clean run", off, limit)
    off = _largest(empty.circuit_values - empty.corrupted_values) / size
    yield Check("a circuit of no edges, against the corrupted run", off, limit)
    edges = _sample_edges(scores)
    # The points of EAP-IG with two steps.
    expected = reference.edge_scores(
        model, task, edges, lambda _, clean, corrupted: [(clean + corrupted) / 2, clean], dtype=dtype
    )
    off = _largest(scores.values[edges[:, 0], edges[:, 1]] - expected) / largest
    yield Check(f"scores of {EDGES} edges, against the slow model", off, limit)
    with torch.no_grad():
        expected = reference.patched_metric(model, task, chosen.mask.to(model.device), dtype=dtype).cpu()
    off = _largest(part.circuit_values - expected) / size
    yield Check(f"a circuit of {len(chosen)} edges, against the slow model", off, limit)
    single = attribute(model, task, "eap-ig", steps=2, batch_size=1)
    yield Check("scores of a batch, against single examples", _largest(scores.values - single.values) / largest, limit)


def device_checks(model: Transformer, task: Task) -> Iterator[Check]:
    """Compare scores and a circuit on the model's device with those on the CPU."""
    limit, on_cpu = LIMITS.get(model.dtype, 0.3), model.to("cpu")
    for method in METHODS:
        scores, expected = attribute(model, task, method), attribute(on_cpu, task, method)
        off = _largest(scores.values - expected.values) / float(expected.values.abs().max())
        yield Check(f"scores by {method}, against the CPU", off, limit)
    circuit = select(expected, min(CIRCUIT, model.graph.n_edges))
    result, on_the_cpu = evaluate(model, circuit, task), evaluate(on_cpu, circuit, task)
    size = float((on_the_cpu.clean_values - on_the_cpu.corrupted_values).abs().mean())
    off = _largest(result.circuit_values - on_the_cpu.circuit_values) / size
    yield Check(f"a circuit of {len(circuit)} edges, against the CPU", off, limit)


def _sample_edges(scores: Scores) -> Tensor:
    """The strongest edges and random ones, (edge, 2)."""
    strongest = select(scores, EDGES // 2, prune=False).index
    generator = torch.Generator(device="cpu").manual_seed(0)
    drawn = torch.randint(scores.graph.n_edges, (EDGES // 2,), generator=generator, device="cpu")
    return torch.cat([strongest, scores.graph.mask.nonzero()[drawn]])


@torch.no_grad()
def _logits_off(model: Transformer, task: Task, original: Any) -> float:
    """The largest difference at any position of any prompt, relative to the largest logit."""
    pairs, off = encode(task, model.tokenizer), list[float]()
    for ids, last in [(x[i], int(pairs.last[i])) for x in (pairs.clean, pairs.corrupted) for i in range(len(x))]:
        prompt = ids[None, : last + 1]
        theirs = original(prompt.to(original.device)).logits[0].double().cpu()
        ours = model.logits(prompt.to(model.device))[0].double().cpu()
        off.append(_largest(ours - theirs) / float(theirs.abs().max()))
    return _largest(torch.tensor(off, device="cpu"))  # NaN if any of them is


def _largest(x: Tensor) -> float:
    return float(x.abs().max())
