"""Compare methods on few examples: attribute some examples with training words, measure circuits on as many others.

python docs/results/gradpath/compare.py smollm2 ioi,sva eap-ig,gp+move=all,gp 12 train

With ``train`` the others have training words, too: what a choice between variants may look at. With ``test`` they have
held-out words.
"""

from __future__ import annotations

import sys
from pathlib import Path

import gradpath as gp
from gradpath.registry import load_plugin
from gradpath.study import check_methods, method_options, method_recipe

SPARSITIES = (0.99, 0.975)


def main(model_name: str, tasks: str, methods: str, n: str, split: str) -> None:
    """Print the error and NFS of every method at every sparsity, the mean error, and the passes of the scores."""
    load_plugin(Path(__file__).with_name("variants.py"))
    model = gp.load_model(model_name)
    for name in tasks.split(","):
        attributed = gp.load_task(name, model, n=2 * int(n), seed=0, split="train")
        attributed, others = attributed[: int(n)], attributed[int(n) :]
        measured = others if split == "train" else gp.load_task(name, model, n=int(n), seed=0, split=split)
        for method in check_methods(methods):
            recipe = method_recipe(method)
            scores = gp.attribute(model, attributed, recipe.method, **method_options(recipe))
            results = []
            for sparsity in SPARSITIES:
                circuit = gp.select(scores, sparsity=sparsity, selection="top")
                results.append(gp.evaluate(model, circuit, measured))
            texts = [f"{result.error:.3f} ({100 * result.faithfulness:.1f}%)" for result in results]
            mean = sum(result.error for result in results) / len(results)
            print(name, method, *texts, f"mean {mean:.3f}", scores.facts.passes, flush=True)  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
