"""How many choices of experts differ between the two prompts of a pair, in the small random mixtures of the tests.

python benchmarks/routing.py
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor

from gradpath.model.architecture import route
from gradpath.model.transformer import Transformer
from gradpath.tasks.task import encode

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from small_models import TINY, prompts, tiny_model

PAIRS, LENGTH = 30, 12


def choices(model: Transformer, ids: Tensor) -> list[Tensor]:
    """Which experts every token uses, in each layer that has some: (prompt, pos, expert), true or false."""
    run, found = model.run(model.embed(ids)), []
    for layer, seen in zip(model.layers, run.layers, strict=True):
        if layer.experts is not None:
            chosen = route(layer.experts, model.read_norm(seen.mlp_in)[0].flatten(0, 1))[1]
            used = torch.zeros(len(chosen), len(layer.experts.router), dtype=torch.bool).scatter(1, chosen, True)
            found.append(used.view(*ids.shape, -1))
    return found


@torch.no_grad()
def share_of_changes(model: Transformer) -> float:
    """The share of the choices on the clean prompts, from the changed token on, that the corrupted ones do not make."""
    changed = torch.randint(LENGTH, (PAIRS,), generator=torch.Generator().manual_seed(0)).tolist()
    pairs = encode(prompts([LENGTH] * PAIRS, [[position] for position in changed]), model.tokenizer)
    behind = torch.arange(LENGTH) >= pairs.first[:, None]
    clean, corrupted = (torch.stack(choices(model, ids)) for ids in (pairs.clean, pairs.corrupted))
    return float((clean & ~corrupted)[:, behind].sum() / clean[:, behind].sum())


def main() -> None:
    for kind in sorted(TINY):
        model = tiny_model(kind)
        if any(layer.experts is not None for layer in model.layers):
            print(f"{kind:20} {share_of_changes(model):.0%}")


if __name__ == "__main__":
    main()
