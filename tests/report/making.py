"""Random scores that look like a model's: few nodes matter, and what matters is read and written."""

from __future__ import annotations

import torch

from gradpath.graph import Graph
from gradpath.recipe import Recipe
from gradpath.report import Chosen, CurvePoint, Example, MethodRun, Report
from gradpath.scores import Scores

SMOLLM2 = (30, 9)


class Maker:
    """Makes the parts of reports."""

    def scores(
        self,
        n_layers: int = 3,
        n_heads: int = 4,
        *,
        seed: int = 0,
        ties: bool = False,
        parallel: bool = False,
        method: str = "eap-gp",
    ) -> Scores:
        graph = Graph(n_layers, n_heads, parallel)
        noise = torch.Generator().manual_seed(seed)
        weight = torch.randn(graph.n_sources + 1, generator=noise).mul(1.2).exp()
        weight[0] = weight[-1] = weight.max()
        shape = (graph.n_sources, graph.n_targets)
        values = weight[:-1, None] * weight[graph.node_of_target] * torch.randn(shape, generator=noise)
        values = values * graph.mask
        if ties:  # many equal sizes, some of opposite sign, and many zeros
            values = values.div(4).round().clamp(-5, 5)
        recipe = Recipe(model="smollm2", task="ioi", method=method, steps=5, options={"start": False})
        return Scores(graph, values.float(), recipe)

    def curve(self, n_edges: int, hows: tuple[str, ...] = ("top", "greedy")) -> list[CurvePoint]:
        shares = (0.005, 0.01, 0.025, 0.05, 0.1)
        counts = sorted({max(1, round(share * n_edges)) for share in shares})
        kept = [(n, at / len(counts)) for at, n in enumerate(counts, 1)]
        return [CurvePoint(how, n, n, x, x - 0.05, x + 0.05, 1 - x) for how in hows for n, x in kept]

    def example(self, name: str = " Mary") -> Example:
        clean = ["When", name, " and", " John", " went", ",", " John", " gave", " it", " to"]
        corrupted = [*clean[:6], name, *clean[7:]]
        return Example(clean, corrupted, name, 5.5, -4.9, 4.7)

    def report(self, *scores: Scores, edges: int = 50, how: str = "top", pruned: bool = True) -> Report:
        curve = self.curve(scores[0].graph.n_edges)
        return Report(
            title="ioi in smollm2",
            model="smollm2",
            task="ioi",
            runs=[MethodRun(one, curve) for one in scores],
            chosen=Chosen(edges, how, pruned=pruned),
            examples=[self.example(), self.example(" Anna")],
            command="gradpath find --model smollm2 --task ioi",
            about={"seed": 7, "seconds": 41.3},
        )
