r"""How exact the effects of a circuit's edges are, and what could have been missed outside of it.

Selections and scores estimate effects by gradients. Inside the circuit H the estimate for an edge e, and what it
estimates, are

    estimated(e) = mean over examples of (x_u - x'_u) . dm / d in_v  in H's own run
    measured(e)  = mean m(H) - mean m(H without e)

(``evaluation.circuit_gradients``, and exact patching), both in shares of the behaviour, for a sample of H's edges from
the strongest to the weakest.

No gradient can tell what gradients miss. AtP*'s diagnostic (Kramar et al. 2024, arXiv 2403.00745, section on
diagnostics and Algorithm 1) can: it patches random subsets S of everything that was not verified. Here S has a quarter
of the edges outside of H, every edge in exactly a quarter of the ``SUBSETS`` subsets, and

    c(e) = mean m(H + S) over subsets with e  -  mean m(H + S) over subsets without e

is what e changes in H, on average over what else is added. The bound is the largest |c(e)| + t(e) SE(e) over all e,
with the standard error and the degrees of freedom of Welch's t-test: the smallest effect that, for every edge, a
one-sided test at 5% rejects. The edge of the largest effect is one of them, so the bound is above that effect with a
confidence of 95%, and needs no correction for the number of edges (an intersection-union test).

As in the paper are the random subsets of what was not verified, the means with and without, Welch's test, and the
largest over all. Different are: edges, not nodes; they are added to H, where the paper corrupts nodes of the clean run;
and each is in a fixed number of subsets, where the paper includes each with some probability. As there, the bound says
nothing of an edge that acts only together with others that are seldom in the same subset. It is loose where the subsets
themselves differ much. The confidence is over subsets: the examples are taken as they are.

Cost: one gradient in H and at most ``SAMPLE`` circuits on all examples, ``SUBSETS`` large circuits on a few of them.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from gradpath.ablation import ablation_of, all_positions
from gradpath.evaluation.circuit_gradients import edge_effects
from gradpath.evaluation.plan import plan_of
from gradpath.evaluation.prepared import prepare
from gradpath.evaluation.result import Result
from gradpath.sweep import own_settings
from gradpath.tasks.task import Task, encode
from gradpath.verdict.result import Effects
from gradpath.verdict.tests import Lab, few_examples

SAMPLE = 24  # edges of the circuit that are patched one by one
SUBSETS = 40
Z_95 = 1.6448536269514722  # the one-sided 95% quantile of the normal distribution
_ROWS = 100_000  # edges that are assigned to subsets at once


def measure_effects(lab: Lab, own: Result) -> Effects:
    """The effects of a sample of the circuit's edges, estimated and measured, and a bound on what others could add."""
    circuit, unit = lab.circuit, own.clean - own.corrupted
    ranks = circuit.scores.abs().argsort(descending=True, stable=True)
    n = min(SAMPLE, len(circuit))
    sample = ranks[torch.linspace(0, len(ranks) - 1, n, device="cpu").round().long()]
    masks = []
    for i in sample.tolist():
        mask = circuit.mask
        mask[tuple(circuit.index[i])] = False
        masks.append(mask)
    measured = [(own.circuit - without.circuit) / unit for without in lab.measure(masks)]
    try:
        estimated: list[float] | None = (_estimates(lab)[sample] / unit).tolist()
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:  # a metric without a gradient
        estimated = None
    bound, edge = _bound(lab, few_examples(lab.task, own))
    return Effects([circuit.edges[i] for i in sample.tolist()], measured, estimated, bound, edge, SUBSETS)


def _estimates(lab: Lab) -> Float[Tensor, " edge"]:
    """The mean over examples of what each edge of the circuit does to first order, in its own run."""
    model, circuit, task = lab.model, lab.circuit, lab.task
    plan, asked = plan_of(model, circuit), circuit.index[:, 0] * circuit.graph.n_targets + circuit.index[:, 1]
    order = asked.argsort()
    total = torch.zeros(len(asked), dtype=torch.float64, device="cpu")
    with own_settings(model):
        ablation = ablation_of(circuit.provenance.ablation, model, task, lab.limits)
        pairs = all_positions(encode(task, model.tokenizer), ablation)
        for batch in pairs.batches(lab.limits.batch(model, pairs)):
            with torch.no_grad():
                prepared = prepare(model, batch.to(model.device), ablation)
            total[order] += edge_effects(prepared, plan, task.metric, asked[order])[1].double().sum(0).cpu()
    return total / len(pairs)


def _bound(lab: Lab, task: Task) -> tuple[float | None, str | None]:
    """What an edge outside the circuit adds at most, in shares of the behaviour, and the edge with this bound."""
    graph, own = lab.circuit.graph, lab.circuit.mask
    outside = (graph.mask & ~own).flatten().nonzero()[:, 0]
    if not len(outside):
        return None, None
    member = torch.empty(len(outside), SUBSETS, dtype=torch.bool, device="cpu")
    for at in range(0, len(outside), _ROWS):
        random = torch.rand(len(member[at : at + _ROWS]), SUBSETS, generator=lab.dice, device="cpu")
        member[at : at + _ROWS] = random.argsort(1) < SUBSETS // 4
    masks = []
    for subset in member.T:
        mask = own.flatten().clone()
        mask[outside[subset]] = True
        masks.append(mask.view(own.shape))
    changes = lab.measure(masks, task)
    values = torch.tensor([x.faithfulness for x in changes], dtype=torch.float64, device="cpu")
    bounds = upper_bounds(member, values)
    worst = int(bounds.argmax())
    source, target = divmod(int(outside[worst]), graph.n_targets)
    return float(bounds[worst]), graph.edge(source, target)


def upper_bounds(member: Tensor, values: Float[Tensor, " subset"]) -> Float[Tensor, " edge"]:
    """Of each edge, |mean with it - mean without it| and what Welch's test adds; ``member`` is (edge, subset)."""
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
    return (mean_in - mean_out).abs() + student_quantile(freedom) * error.sqrt()


def student_quantile(freedom: Float[Tensor, " edge"]) -> Float[Tensor, " edge"]:
    """The one-sided 95% quantile of Student's t, to 0.001 from 4 degrees of freedom on (Abramowitz, Stegun 26.7.5).

    >>> [round(t, 3) for t in student_quantile(torch.tensor([4.0, 9.0, 38.0])).tolist()]
    [2.132, 1.833, 1.686]
    """
    z = Z_95
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum((term / freedom**k for k, term in enumerate(terms, start=1)), torch.zeros_like(freedom))
