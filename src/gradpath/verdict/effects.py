"""How exact the effects of a circuit's edges are, and what could have been missed outside of it.

Selections and scores estimate effects by gradients. Inside the circuit H the estimate for an edge e, and what it
estimates, are

    estimated(e) = mean over examples of (x_u - x'_u) . dm / d in_v  in H's own run
    measured(e)  = mean m(H) - mean m(H without e)

(``evaluation.circuit_gradients``, and exact patching), both in shares of the behaviour, for a sample of H's edges from
the strongest to the weakest.

Gradients cannot show what gradients miss. AtP*'s diagnostic (Kramar et al. 2024, arXiv 2403.00745, section on
diagnostics and Algorithm 1) can: it patches random subsets S of everything that was not verified. Our S has a quarter
of the edges outside of H, every edge is in exactly a quarter of the ``SUBSETS`` subsets, and

    c(e) = mean m(H + S) over subsets with e  -  mean m(H + S) over subsets without e

is what e changes in H, on average over what else is added. The bound is the largest |c(e)| + t(e) SE(e) over all e,
with the standard error and the degrees of freedom of Welch's t-test: the smallest effect that, for every edge, a
one-sided test at 5% rejects. The edge of the largest effect is one of them, so the bound is above that effect with a
confidence of 95%, and needs no correction for the number of edges (an intersection-union test).

The random subsets of what was not verified, the means with and without, Welch's test, and the maximum over all are as
in the paper. There are three differences: we use edges, not nodes; we add them to H, where the paper corrupts nodes of
the clean run; and each edge is in a fixed number of subsets, where the paper includes each with some probability. As in
the paper, the bound does not cover an edge that acts only together with others that are seldom in the same subset. It
is loose if the subsets themselves differ much. The confidence is over subsets: the examples are fixed.

Cost: one gradient in H and at most ``SAMPLE`` circuits on all examples, ``SUBSETS`` large circuits on a few of them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from gradpath.evaluation.circuit_gradients import edge_effects
from gradpath.evaluation.patched_run import plan_of
from gradpath.evaluation.result import Result
from gradpath.runtime import distributed
from gradpath.sweep import own_settings, sweep
from gradpath.tasks.metrics import NoGradientError
from gradpath.tasks.task import Pairs, Task
from gradpath.verdict.checks import DENSE, CircuitUnderTest, few_examples

SAMPLE = 12  # edges of the circuit that are patched one by one
SUBSETS = 40
_ROWS = 100_000  # edges that are assigned to subsets at once


@dataclass(frozen=True)
class Effects:
    """The exactness of the circuit's edge effects, and a bound on what was missed.

    All numbers are shares of the behaviour.

    Args:
        edges: A sample of the circuit's edges, the strongest first.
        measured: What the circuit loses without each of them.
        estimated: The first-order estimate of this, by gradients in the circuit; None if the metric has no gradient.
        bound: The most that an edge outside changes the circuit, with 95% confidence; None if there is no such edge.
        bound_edge: The edge with this bound.
        subsets: The number of random subsets behind the bound.
    """

    edges: list[str]
    measured: list[float]
    estimated: list[float] | None
    bound: float | None
    bound_edge: str | None
    subsets: int

    @property
    def correlation(self) -> float | None:
        """Pearson's correlation of both; None if one of them hardly varies."""
        if self.estimated is None or len(self.edges) < 3:
            return None
        both = torch.tensor([self.measured, self.estimated], dtype=torch.float64, device="cpu")
        if bool((both.std(1) < 1e-6).any()):
            return None
        return float(torch.corrcoef(both)[0, 1])

    @property
    def about(self) -> str:
        """In one line, next to the tests."""
        n = f"{len(self.edges)} of its edges" if len(self.edges) > 1 else "its edge"
        least, most = min(self.measured), max(self.measured)
        text = f"without {n}, one at a time, it loses {least:+.3f} to {most:+.3f} of the behaviour"
        if self.estimated is not None:
            off = sum(abs(a - b) for a, b in zip(self.measured, self.estimated, strict=True)) / len(self.edges)
            both = self.correlation
            text += f"; gradients are off by {off:.3f} on average"
            text += "" if both is None else f" (correlation {both:.2f})"
        if self.bound is not None:
            text += f"; no other edge changes it by more than {self.bound:.3f} (95% confidence, "
            text += f"{self.subsets} random subsets)"
        return text

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "correlation": self.correlation, "about": self.about}


def measure_effects(tested: CircuitUnderTest, result: Result) -> Effects:
    """The effects of a sample of the circuit's edges, estimated and measured, and a bound on what others could add."""
    circuit, unit = tested.circuit, result.clean - result.corrupted
    ranked = circuit.scores.abs().argsort(descending=True, stable=True)
    n = min(SAMPLE, len(circuit))
    sample = ranked[torch.linspace(0, len(ranked) - 1, n, device="cpu").round().long()]
    measured = [(result.circuit - without.circuit) / unit for without in tested.measure_without(sample.tolist())]
    try:
        estimated: list[float] | None = (_estimates(tested)[sample] / unit).tolist()
    except NoGradientError:
        estimated = None
    bound, edge = _bound(tested, few_examples(tested.task, result, DENSE))
    return Effects([circuit.edges[i] for i in sample.tolist()], measured, estimated, bound, edge, SUBSETS)


def _estimates(tested: CircuitUnderTest) -> Float[Tensor, " edge"]:
    """The mean over examples of the first-order effect of each edge of the circuit, in the circuit's run."""
    model, circuit, task = tested.model, tested.circuit, tested.task
    plan, edges = plan_of(model, circuit), circuit.flat
    order = edges.argsort()
    total = torch.zeros(len(edges), dtype=torch.float64, device="cpu")
    with own_settings(model):
        examples, pairs = tested.examples, tested.examples.pairs

        def summed_effects(batch: Pairs) -> Tensor:
            _, effects = edge_effects(examples.prepare(batch).prepared, plan, task.metric, edges[order])
            return effects.double().sum(0).cpu()

        batches, doing = examples.batches or [], "estimating the effects of edges"
        same = circuit.mask.numpy().tobytes
        for effects in sweep(model, task, pairs, batches, summed_effects, doing=doing, same=same, bar=doing):
            total[order] += effects
    return distributed.all_sum(total) / len(pairs)


def _bound(tested: CircuitUnderTest, task: Task) -> tuple[float | None, str | None]:
    """What an edge outside the circuit adds at most, in shares of the behaviour, and the edge with this bound."""
    graph, circuit = tested.circuit.graph, tested.circuit.mask
    outside = (graph.mask & ~circuit).flatten().nonzero()[:, 0]
    if not len(outside):
        return None, None
    member = torch.empty(len(outside), SUBSETS, dtype=torch.bool, device="cpu")
    for at in range(0, len(outside), _ROWS):
        random = torch.rand(len(member[at : at + _ROWS]), SUBSETS, generator=tested.generator, device="cpu")
        member[at : at + _ROWS] = random.argsort(1) < SUBSETS // 4
    masks = []
    for subset in member.T:
        mask = circuit.flatten().clone()
        mask[outside[subset]] = True
        masks.append(mask.view(circuit.shape))
    values = torch.tensor([x.faithfulness for x in tested.measure(masks, task)], dtype=torch.float64, device="cpu")
    bounds = upper_bounds(member, values)
    worst = int(bounds.argmax())
    return float(bounds[worst]), graph.edge_at(int(outside[worst]))


def upper_bounds(member: Tensor, values: Float[Tensor, " subset"]) -> Float[Tensor, " edge"]:
    """|mean with an edge - mean without it| plus the margin of Welch's test; ``member`` is (edge, subset)."""
    from scipy.special import stdtrit

    inside = member.double()
    n = inside.sum(1)
    m = len(values) - n
    values = values - values.mean()  # the squares below would lose digits
    first, second = inside @ values, inside @ values.square()
    mean_in, mean_out = first / n, (values.sum() - first) / m
    spread_in = (second - n * mean_in.square()).clamp(min=0) / (n - 1) / n
    spread_out = (values.square().sum() - second - m * mean_out.square()).clamp(min=0) / (m - 1) / m
    error = spread_in + spread_out
    freedom = error.square() / (spread_in.square() / (n - 1) + spread_out.square() / (m - 1))
    freedom = freedom.nan_to_num(1.0).clamp(min=1.0)  # all values are equal: the error is 0
    quantile = torch.from_numpy(stdtrit(freedom.numpy(), 0.95))  # of Student's t, one-sided
    return (mean_in - mean_out).abs() + quantile * error.sqrt()
