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

is what e adds to H, on average over what else is added. The bound is the largest |c(e)| + t SE(e) over all e: if some
edge had more, all of them would have stayed below it with a probability of at most 5%. That is an intersection-union
test, so it needs no correction for the number of edges. The bound is loose where the subsets themselves differ much,
and it says nothing of an edge that acts only together with others that are seldom in the same subset.

Cost: one gradient in H and at most ``SAMPLE`` circuits on all examples, ``SUBSETS`` large circuits on a few of them.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from gradpath.ablation import ablation_of, all_positions
from gradpath.evaluation.circuit_gradients import edge_effects
from gradpath.evaluation.patched_run import prepare
from gradpath.evaluation.plan import plan_of
from gradpath.evaluation.result import Result
from gradpath.sweep import own_settings
from gradpath.tasks.task import Task, encode
from gradpath.verdict.quick import few_examples
from gradpath.verdict.result import Effects
from gradpath.verdict.tests import Lab

SAMPLE = 24  # edges of the circuit that are patched one by one
SUBSETS = 40
T_38 = 1.686  # Student's t: one-sided 95% with SUBSETS - 2 degrees of freedom
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
    """What an edge outside of the circuit adds at most, in shares of the behaviour, and the edge with this bound."""
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
    """Of each edge, |mean with it - mean without it| plus t standard errors; ``member`` is (edge, subset)."""
    inside = member.double()
    n = inside.sum(1)
    m = len(values) - n
    first, second = inside @ values, inside @ values.square()
    mean_in, mean_out = first / n, (values.sum() - first) / m
    spread = (second - n * mean_in.square()) + (values.square().sum() - second - m * mean_out.square())
    error = (spread.clamp(min=0) / (len(values) - 2) * (1 / n + 1 / m)).sqrt()
    return (mean_in - mean_out).abs() + T_38 * error
