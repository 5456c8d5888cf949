"""GPT-2 XL's shape on one machine: 48 layers of 25 heads, 1,600 wide, 2.2 million edges, random weights.

Scores one batch with each method, selects 1% of the edges by three selections, evaluates the circuit, and
prints what each took and the most memory the process ever held. Run it with ``make bench-large``.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from typing import Any

import torch

from gradpath.attribution.attribute import attribute
from gradpath.evaluation import evaluate
from gradpath.model.architecture import Architecture, Layer
from gradpath.model.transformer import Transformer
from gradpath.selection import select
from gradpath.sweep import parse_bytes
from gradpath.tasks.task import Task

LAYERS, HEADS, WIDTH, VOCAB, POSITIONS = 48, 25, 1600, 50_257, 1024
MEMORY, EXAMPLES, LENGTH, DIFFERS = "12GB", 4, 15, 10


def main() -> None:
    torch.manual_seed(0)
    model, task = random_model(), prompts()
    print(f"{model.graph.n_edges:,} edges; at most {MEMORY} allowed; {EXAMPLES} examples of {LENGTH} tokens")
    for method in ("eap", "eap-ig", "eap-gp"):
        scores = timed(method, lambda m=method: attribute(model, task, m, memory=parse_bytes(MEMORY)))
        print(f"  in batches of {scores.facts.batch_size}")
    n = max(1, model.graph.n_edges // 100)
    measuring: dict[str, Any] = {"model": model, "task": task, "memory": parse_bytes(MEMORY)}
    for how, more in (("top", {}), ("greedy", {}), ("refined", measuring)):
        circuit = timed(f"select {n:,} edges, {how}", lambda h=how, m=more: select(scores, n, selection=h, **m))
    timed("evaluate", lambda: evaluate(model, circuit, task, memory=parse_bytes(MEMORY)))


def timed(name: str, work: Callable[[], Any]) -> Any:
    begin, cpu = time.monotonic(), time.process_time()
    done = work()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    took = f"{time.monotonic() - begin:7.1f} s, {time.process_time() - cpu:7.1f} CPU s"
    print(f"{name:28} {took}, peak {peak:.1f} GiB so far")
    return done


def random_model() -> Transformer:
    """Made directly, so that no second copy of the weights ever exists."""
    arch = Architecture(
        "gpt2",
        LAYERS,
        HEADS,
        HEADS,
        WIDTH // HEADS,
        WIDTH,
        norm="layer",
        norm_eps=1e-5,
        activation="gelu_new",
        gated=False,
    )

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape).mul_(0.02)

    def layer() -> Layer:
        d = WIDTH
        return Layer(
            w_qkv=random(3 * d, d),
            b_qkv=random(3 * d),
            w_o=random(d, d),
            b_o=random(d),
            w_in=random(4 * d, d),
            b_in=random(4 * d),
            w_out=random(d, 4 * d),
            b_out=random(d),
            scale=arch.d_head**-0.5,
            window=None,
        )

    embedding = random(VOCAB, WIDTH)
    return Transformer(
        arch=arch,
        layers=tuple(layer() for _ in range(LAYERS)),
        embedding=embedding,
        unembedding=embedding,
        final_gain=torch.ones(WIDTH),
        positions=random(POSITIONS, WIDTH),
        name="GPT-2 XL's shape",
    )


def prompts() -> Task:
    clean = torch.randint(0, VOCAB, (EXAMPLES, LENGTH))
    corrupted = clean.clone()
    corrupted[:, DIFFERS] = torch.randint(0, VOCAB, (EXAMPLES,))
    return Task(clean, corrupted, torch.randint(0, VOCAB, (EXAMPLES, 2)))


if __name__ == "__main__":
    main()
