"""What bfloat16 does to the scores of SmolLM2: rank correlation with float32, and the same edges selected.

20 examples of IOI, seed 0. Run it with ``make bench-half``.
"""

from __future__ import annotations

import torch

import gradpath as gp


def main() -> None:
    exact = gp.load_model("smollm2")
    half = exact.to(dtype=torch.bfloat16)
    task = gp.load_task("ioi", exact, n=20)
    edges = exact.graph.mask
    for method in ("eap-ig", "eap-gp"):
        scores = [gp.attribute(model, task, method) for model in (exact, half)]
        ranks = torch.stack([one.values[edges].argsort().argsort().double() for one in scores])
        print(f"{method}: Spearman {float(torch.corrcoef(ranks)[0, 1]):.3f}")
        for sparsity in (0.975, 0.99):
            a, b = (gp.select(one, sparsity=sparsity, prune=False).mask for one in scores)
            print(f"  {float((a & b).sum() / a.sum()):.1%} of the same edges at {sparsity:.1%} sparsity")


if __name__ == "__main__":
    main()
