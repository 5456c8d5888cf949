"""What a careful user runs before believing us: this model, on this machine, against what it should be.

The engine's logits are held against those of ``transformers``; circuits of all edges and of none against the
clean and the corrupted run; scores and a circuit's run against the plain model (``plain``), which computes
every node on its own; and scores of one batch against those of single examples.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradpath.attribution.attribute import attribute
from gradpath.circuit import Circuit
from gradpath.evaluation.evaluate import evaluate
from gradpath.model.transformer import Transformer
from gradpath.reference import everything, examples, forward, patched, slopes
from gradpath.scores import Scores
from gradpath.selection import select
from gradpath.tasks.task import Task, encode

EDGES = 12  # held against the plain model: half of them the strongest, half drawn
CIRCUIT = 200  # edges of the circuit that is run both ways
# How far off a quantity may be, as a share of its size: rounding, through all layers.
LIMITS = {torch.float64: 1e-6, torch.float32: 1e-4, torch.bfloat16: 0.3, torch.float16: 0.03}


@dataclass(frozen=True)
class Check:
    """One thing that was compared, how far it was off, as a share of its size, and how far it may be."""

    what: str
    off: float
    limit: float

    @property
    def passed(self) -> bool:
        return self.off <= self.limit  # and not if it is no number


def checks(model: Transformer, task: Task, original: Any | None) -> Iterator[Check]:
    """All comparisons, each as it is done. ``original`` is the ``transformers`` model, where there is one."""
    limit = LIMITS.get(model.dtype, 0.3)
    if original is not None:
        yield Check("logits, against transformers", _logits(model, task, original), limit)
    scores = attribute(model, task, "eap-ig", steps=2)
    everything_, nothing = scores.graph.mask, torch.zeros_like(scores.graph.mask)
    some = select(scores, min(CIRCUIT, scores.graph.n_edges))
    circuits = [_circuit(scores, everything_), _circuit(scores, nothing), some]
    whole, none, part = evaluate(model, circuits, task)
    size = float((whole.clean_values - whole.corrupted_values).abs().mean())
    yield Check(
        "a circuit of all edges, against the clean run", _far(whole.circuit_values, whole.clean_values) / size, limit
    )
    yield Check(
        "a circuit of no edges, against the corrupted run",
        _far(none.circuit_values, none.corrupted_values) / size,
        limit,
    )
    yield Check(f"scores of {EDGES} edges, against the plain model", _scores(model, task, scores), limit)
    yield Check(
        f"a circuit of {len(some)} edges, against the plain model",
        _run(model, task, some, part.circuit_values) / size,
        limit,
    )
    alone = attribute(model, task, "eap-ig", steps=2, batch_size=1)
    yield Check(
        "scores of a batch, against single examples",
        _far(scores.values, alone.values) / float(scores.values.abs().max()),
        limit,
    )


def _far(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max())


def _circuit(scores: Scores, mask: Tensor) -> Circuit:
    return Circuit(scores.graph, mask.nonzero(), scores.values[mask])


@torch.no_grad()
def _logits(model: Transformer, task: Task, original: Any) -> float:
    """The largest difference at any position of any prompt, as a share of the largest logit."""
    pairs, worst = encode(task, model.tokenizer), 0.0
    for ids, last in [(x[i], int(pairs.last[i])) for x in (pairs.clean, pairs.corrupted) for i in range(len(x))]:
        real = ids[None, : last + 1]
        theirs = original(real.to(original.device)).logits[0].double().cpu()
        ours = model.unembed(model.run(model.embed(real.to(model.device))).final_in)[0].double().cpu()
        worst = max(worst, _far(ours, theirs) / float(theirs.abs().max()))
    return worst


def _scores(model: Transformer, task: Task, scores: Scores) -> float:
    """Twelve edges by the definition, as a share of the largest score."""
    graph = scores.graph
    strongest = select(scores, EDGES // 2, prune=False).index
    generator = torch.Generator(device="cpu").manual_seed(0)
    drawn = graph.mask.nonzero()[torch.randint(graph.n_edges, (EDGES // 2,), generator=generator, device="cpu")]
    edges = torch.cat([strongest, drawn])
    found = torch.zeros(len(edges), dtype=torch.float64, device="cpu")
    for clean, corrupted, labels in examples(model, task, _wide(model)):
        change = [forward(model, x, everything)[1] for x in (clean, corrupted)]
        for point in ((clean + corrupted) / 2, clean):
            gradients = slopes(model, task, labels, point)
            for i, (u, v) in enumerate(edges.tolist()):
                part = (change[0][u] - change[1][u]) * gradients[graph.targets[v]]
                found[i] += float(part.sum()) / 2 / len(task)
    ours = scores.values[edges[:, 0], edges[:, 1]].double()
    return _far(ours, found) / float(scores.values.abs().max())


@torch.no_grad()
def _run(model: Transformer, task: Task, circuit: Circuit, ours: Tensor) -> float:
    mask, values = circuit.mask.to(model.device), []
    for clean, corrupted, labels in examples(model, task, _wide(model)):
        values.append(float(patched(model, task, labels, mask, (clean, corrupted))))
    return _far(ours, torch.tensor(values, device="cpu"))


def _wide(model: Transformer) -> torch.dtype:
    """What the plain model computes in: half precision would be its own error, not the engine's."""
    return torch.promote_types(model.dtype, torch.float32)
