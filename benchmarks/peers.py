"""gradpath beside what one would otherwise run, on the same tokens and weights, in turns in one process.

The unit is one forward + backward pass of transformers to the inputs. auto-circuit is there with its mask
gradients, which are EAP, and with its evaluation of circuits, on a TransformerLens model of the same weights.
Nothing is timed unless its scores and its circuits' metrics are those of gradpath. The setting is that of
``cost.py``. Writes ``benchmarks/RESULTS.md``. Run it with ``make bench-peers``.
"""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from pathlib import Path
from textwrap import fill

os.environ["TQDM_DISABLE"] = "1"  # auto-circuit's bars

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

import peer_auto_circuit as peer
from cost import BATCH, DIFFERS, EXAMPLES, LENGTH, fastest, forward_backward, prompts
from gradpath.attribution.attribute import attribute
from gradpath.evaluation import evaluate
from gradpath.model.families import convert
from gradpath.selection import select
from gradpath.study.outcome import commit

SEED, TURNS, SPARSITY = 0, 3, 0.975
MORE, THEIR_MORE = 20, 2  # further circuits, to tell one from the set-up
TOLERANCE = 1e-4  # of the largest value
PACKAGES = ("torch", "transformers", "transformer-lens", "auto-circuit", "gradpath")

torch.set_num_threads(1)
torch.manual_seed(SEED)
ORIGINAL = GPT2LMHeadModel(GPT2Config()).eval().requires_grad_(False)
MODEL, TASK = convert(ORIGINAL), prompts()
SCORES = attribute(MODEL, TASK, "eap", batch_size=BATCH)
CIRCUIT = select(SCORES, sparsity=SPARSITY)
THEIRS, LOADER = peer.patchable(ORIGINAL), peer.loader(TASK, BATCH)
THEIR_SCORES = peer.eap(THEIRS, LOADER)
# Their circuits are found by our scores, so that both tools measure the very same edges.
RANKING = peer.as_prune_scores(MODEL.graph, SCORES.values, THEIR_SCORES)


def our_circuits(n: int) -> Tensor:
    """The metric of each example in the circuit, measured n times with one set-up."""
    return evaluate(MODEL, [CIRCUIT] * n, TASK, batch_size=BATCH)[0].circuit_values


def their_circuits(n: int) -> Tensor:
    logits = peer.circuits(THEIRS, LOADER, RANKING, [CIRCUIT.requested] * n)
    return TASK.metric(logits[CIRCUIT.requested], TASK.labels)


def main() -> int:
    apart = differences()
    if THEIRS.n_edges != MODEL.graph.n_edges or not all(x <= TOLERANCE for x in apart.values()):
        counts = f"auto-circuit has {THEIRS.n_edges} edges, gradpath {MODEL.graph.n_edges}"
        print(f"The tools do not agree, so there is nothing to compare: {counts}; differences {apart}.")
        return 1
    text = written(apart, measured())
    print(text)
    (Path(__file__).parent / "RESULTS.md").write_text(text)
    return 0


def differences() -> dict[str, float]:
    """How far the tools are apart, as shares of the largest value."""

    def far(ours: Tensor, theirs: Tensor) -> float:
        return float((ours - theirs).abs().max() / ours.abs().max())

    edges = MODEL.graph.mask
    their_scores = peer.as_matrix(MODEL.graph, THEIR_SCORES, EXAMPLES // BATCH)
    return {
        "EAP scores": far(SCORES.values[edges], their_scores[edges]),
        "metric in the circuit": far(our_circuits(1), their_circuits(1)),
    }


def measured() -> dict[str, float]:
    """CPU seconds of everybody's best turn."""
    seconds = fastest(
        {
            "unit": lambda: forward_backward(ORIGINAL, TASK),
            **{m: lambda m=m: attribute(MODEL, TASK, m, batch_size=BATCH) for m in ("eap", "eap-ig", "eap-gp")},
            "first": lambda: our_circuits(1),
            "all": lambda: our_circuits(1 + MORE),
            "their eap": lambda: peer.eap(THEIRS, LOADER),
            "their first": lambda: their_circuits(1),
            "their all": lambda: their_circuits(1 + THEIR_MORE),
        },
        TURNS,
    )
    seconds["more"] = (seconds["all"] - seconds["first"]) / MORE
    seconds["their more"] = (seconds["their all"] - seconds["their first"]) / THEIR_MORE
    return seconds


def written(apart: dict[str, float], seconds: dict[str, float]) -> str:
    def row(name: str, ours: str, theirs: str | None = None) -> str:
        unit = seconds["unit"]
        beside = ["", ""]
        if theirs is not None:
            beside = [f"{seconds[theirs] / unit:.1f}", f"{seconds[theirs] / seconds[ours]:.0f}"]
        return f"| {name} | {seconds[ours] / unit:.2f} | {beside[0]} | {beside[1]} |"

    setting = (
        "CPU time as multiples of one forward + backward pass of `transformers` to the inputs, on the same "
        "tokens and weights, taken in turns in one process. GPT-2 small's shape, random weights, "
        f"{EXAMPLES} examples of {LENGTH} tokens that differ at position {DIFFERS}, batches of {BATCH}, "
        f"circuits at {SPARSITY:.1%} sparsity, one thread, the fastest of {TURNS} turns. "
        f"Seed {SEED}, commit {commit()}, command `make bench-peers`, "
        f"{', '.join(f'{name} {version(name)}' for name in PACKAGES)}."
    )
    table = [
        "| | gradpath | auto-circuit | ratio |",
        "|---|---|---|---|",
        row("EAP (auto-circuit: mask gradients at 0)", "eap", "their eap"),
        row("EAP-IG, 5 steps", "eap-ig"),
        row("EAP-GP, 5 steps", "eap-gp"),
        row("the first circuit, with its set-up", "first", "their first"),
        row("one more circuit", "more", "their more"),
    ]
    agreed = ", ".join(f"{value:.0e} ({name})" for name, value in apart.items())
    reading = (
        f"Both tools compute the same: the largest difference, as a share of the largest value, is {agreed}. "
        "auto-circuit runs every position here; it can share keys and values only where all prompts of a "
        "data set begin with the same tokens. Its integrated gradients interpolate masks, which is not "
        "EAP-IG, and it has no EAP-GP."
    )
    paragraphs = ["# Comparison with other tools", fill(setting, 118), "\n".join(table), fill(reading, 118)]
    return "\n\n".join(paragraphs) + "\n"


if __name__ == "__main__":
    sys.exit(main())
