r"""``learned``: learn how much of every edge a circuit needs, by gradient descent on masks between 0 and 1.

``refined`` decides about edges one after another, on the given examples. ``learned`` gives every edge a score s and
learns all scores together, as in Matryoshka attribution (arXiv 2609.25518). A step draws a size k and gives every edge
a weight

    w_e = sigmoid((s_e - t) / T)        with t such that the weights sum to k,

runs the model with every edge weighted,

    in_v = in'_v + sum over edges of w_e (x_u - x'_u),

and moves the scores by Adam. With m_i the metric of example i, the loss is

``match``   mean of (m_i(circuit) - m_i(model))^2: the circuit should do on every example what the model does
``kl``      the mean KL divergence of the circuit's next token from the model's

The gradient of m_i by w_e is the effect of the edge on the example in this run (``evaluation.circuit_gradients``), so a
step costs one run of the circuit and one backward pass. T falls, so that in the end the weights are nearly 0 or 1.
Edges of negligible weight are left out of the run, and so are nodes that no other edge leaves.

A circuit that is learned on few examples fits only these. So new examples are used as long as the task has them: a
built-in task draws more of its own split; other tasks use the examples of the scores repeatedly. The set-up of an
example costs as much as its step. So a step draws from a window of examples that moves slowly, and each example is used
``USES`` times. Sizes are drawn around the requested ones. The result is one order of edges for all sizes.

The last step is exact. The circuits of the requested sizes are run with hard edges on ``UNSEEN`` examples, if possible
other examples than those learned from. If the mean metric of a circuit differs from the model's by more than chance,
edges are ranked again by s_e + lambda a_e, with a_e the mean effect of the edge there. Bisection finds the lambda for
which the difference vanishes. Effects are first-order, so the new circuit is run, too. It is used if its error plus the
difference of the means is smaller.

Cost per step: the set-up of ``batch / USES`` examples, and on ``batch`` examples one run of the circuit and one
backward pass.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gradpath.errors import UsageError, whole_number
from gradpath.evaluation.patched_run import Plan, plan_of
from gradpath.prepared import PreparedBatches
from gradpath.runtime import distributed
from gradpath.runtime.progress import progress_bar
from gradpath.scores import Scores
from gradpath.selection.probe import CircuitProbe, start_size
from gradpath.selection.ranking import Context, Edges, Order, circuit_of, selection, top
from gradpath.tasks.load import clean_logits, more_examples
from gradpath.tasks.task import Pairs, judged_by_kl

STEPS = 32
EXAMPLES = 1000  # to learn from, at most
BATCH = 16
ROWS = 96  # examples times positions that are run at once
USES = 4  # steps that use an example, on average, before another replaces it
WINDOW = 64  # examples that a step draws from: their prepared batches are kept
RATE = 0.1  # of Adam
DECAY = 0.9, 0.99  # of Adam's two means
WARM, COLD = 0.5, 0.1  # T at the first step and at the last
SPREAD = 1.5  # sizes are drawn up to this factor from the requested ones
SPACING = 0.5  # s of the edge of rank r at the start: -SPACING log(r / n)
NEGLIGIBLE = 0.01  # an edge of less weight is left out of the run
AVERAGED = 0.1  # the share of steps, the last ones, whose scores are averaged
UNSEEN = 48  # examples that the last step is measured on
CLEAR = 2.0  # a circuit's mean is off the model's if they differ by more standard errors than this
LADDER = 4  # sizes that are corrected to the model's mean, if only a range of sizes is requested
ADAM_EPS = 1e-12


@selection("learned")
def learned(
    scores: Scores,
    context: Context,
    *,
    steps: int = STEPS,
    examples: int = EXAMPLES,
    batch: int = BATCH,
    rate: float = RATE,
    loss: Literal["match", "kl"] = "match",
    seed: int = 0,
) -> Order:
    """Learn a weight between 0 and 1 for every edge by gradient descent, on new examples at every step.

    ``examples`` is the number of examples to learn from.
    """
    given = context.examples("learned", scores)
    model, task = given.model, given.task
    for name, number in (("steps", steps), ("examples", examples), ("batch", batch)):
        whole_number(f"{name} of learned", number)
    whole_number("the seed of learned", seed, least=0)
    if not 0 < rate < math.inf:
        raise UsageError(f"learned needs a rate above 0: got {rate}.")
    needed = min(examples, steps * batch // USES + WINDOW + UNSEEN)
    # The means of an ablation are over the examples of the scores, so there are no others.
    more = task if scores.ablation.startswith("mean") else more_examples(task, model, needed)
    judged = judged_by_kl(more, clean_logits(model, more)) if loss == "kl" else more
    prepared = given if judged is task else PreparedBatches(model, judged, scores.ablation, given.limits)
    probe = CircuitProbe.of(prepared, scores, rows=ROWS)
    n_start, ranked = start_size(scores.graph.n_edges), top(scores).edges
    sizes = sizes_of(context, scores.n_edges, n_start)
    learner = _Learner(probe, ranked[:n_start], sizes, loss == "match", steps, batch, rate, seed)
    return Order(scores, torch.cat([learner.order(), ranked[n_start:]]))


@dataclass(frozen=True)
class Sizes:
    """The sizes that circuits are learned for: the requested ones, or all from the smallest to the largest."""

    requested: tuple[int, ...]
    smallest: int
    largest: int

    def draw(self, generator: torch.Generator) -> float:
        """A random size: up to a factor of ``SPREAD`` from a requested one, or one of the whole range."""
        which, where = (float(x) for x in torch.rand(2, generator=generator, device="cpu"))
        if not self.requested:
            return self.smallest * math.pow(self.largest / self.smallest, where)
        return self.requested[int(which * len(self.requested))] * math.pow(SPREAD, 2 * where - 1)

    @property
    def measured(self) -> list[int]:
        """The sizes that are corrected to the model's mean, largest first."""
        if self.requested:
            return sorted(self.requested, reverse=True)
        ratio = self.smallest / self.largest
        return sorted({round(self.largest * ratio ** (i / LADDER)) for i in range(1, LADDER + 1)}, reverse=True)


def sizes_of(context: Context, n_edges: int, n_start: int) -> Sizes:
    """The sizes of the context, as far as they are below the number of edges that the learning starts from."""
    smallest, largest = context.smallest, min(context.largest or n_edges, n_start)
    requested = context.sizes or (() if smallest < largest else (smallest,))
    return Sizes(tuple(dict.fromkeys(n for n in requested if n < n_start)), min(smallest, n_start), largest)


def weights_of(values: Float[Tensor, " edge"], size: float, temperature: float) -> Float[Tensor, " edge"]:
    """sigmoid((s - t) / T), with t by bisection such that the weights sum to ``size``."""
    size = min(size, 0.99 * len(values))
    low, high = float(values.min()) - 40 * temperature, float(values.max()) + 40 * temperature
    for _ in range(60):
        middle = (low + high) / 2
        weights = torch.sigmoid((values - middle) / temperature)
        low, high = (middle, high) if float(weights.sum()) > size else (low, middle)
    return weights


def gradient_by_values(
    weights: Float[Tensor, " edge"], by_weights: Float[Tensor, " edge"], temperature: float
) -> Float[Tensor, " edge"]:
    """The gradient by s of a loss, from its gradient by the weights, with t such that their sum is constant."""
    slope = weights * (1 - weights) / temperature
    return slope * (by_weights - (slope * by_weights).sum() / slope.sum().clamp_min(torch.finfo(slope.dtype).tiny))


@dataclass(frozen=True)
class _Learner:
    """Learns the scores of some edges, and orders the edges by them."""

    probe: CircuitProbe
    edges: Edges
    sizes: Sizes
    match: bool
    steps: int
    batch: int
    rate: float
    seed: int

    def order(self) -> Edges:
        """The edges, best first."""
        n = len(self.edges)
        rank = torch.arange(1, n + 1, dtype=torch.float64, device="cpu")
        values, late = -SPACING * torch.log(rank / n), list[Tensor]()
        first = second = torch.zeros_like(values)  # Adam's means of the gradient and of its square
        with progress_bar("learning weights of edges", self.steps, unit="step") as bar:
            for step in range(self.steps):
                done = step / self.steps
                temperature = WARM * (COLD / WARM) ** done
                weights = weights_of(values, self.sizes.draw(_generator(self.seed, "size", step)), temperature)
                gradient = gradient_by_values(weights, self._gradient(weights, step), temperature)
                first = DECAY[0] * first + (1 - DECAY[0]) * gradient
                second = DECAY[1] * second + (1 - DECAY[1]) * gradient.square()
                mean = first / (1 - DECAY[0] ** (step + 1))
                root_mean_square = (second / (1 - DECAY[1] ** (step + 1))).sqrt() + ADAM_EPS
                rate = self.rate * (1 - 0.9 * max(0.0, 2 * done - 1))
                values = distributed.broadcast_first(values - rate * mean / root_mean_square)
                late += [values] if done >= 1 - AVERAGED else []
                bar.update()
        values = torch.stack(late).sum(0) / len(late) if late else values
        return self._brought_back(distributed.broadcast_first(values))

    def _gradient(self, weights: Tensor, step: int) -> Float[Tensor, " edge"]:
        """The gradient of the loss by the weights, on the examples of a step."""
        alive = weights > NEGLIGIBLE
        plan = self._plan(self.edges[alive], weights[alive])
        examples = self._examples(step)

        def loss(deviations: Tensor) -> Tensor:  # with ``kl``, the metric is minus the divergence
            return deviations.square().sum() / 2 if self.match else -deviations.sum()

        parts = [self.probe.gradient_on(pairs, plan, self.edges, loss) for pairs in examples]
        return torch.stack(parts).sum(0) / sum(map(len, examples))

    def _plan(self, edges: Edges, weights: Tensor | None = None) -> Plan:
        if weights is not None:
            matrix = torch.zeros_like(self.probe.scores.values, dtype=weights.dtype)
            weights = matrix.put_(edges, weights)
        return plan_of(self.probe.model, circuit_of(self.probe.scores, edges, prune=False), weights)

    @cached_property
    def _split(self) -> tuple[list[Pairs], list[Pairs]]:
        """The batches to learn from, and those of the last step: with other examples, if there are enough."""
        pairs, n = self.probe.pairs, len(self.probe.pairs) - UNSEEN

        def cut(begin: int, end: int, most: int) -> list[Pairs]:
            return pairs.rows(torch.arange(begin, end, device="cpu")).tight_batches(self.probe.rows, most)

        most = len(pairs)
        # The pairs are shuffled, so the last ones are a sample. The last batches would contain the longest pairs.
        return cut(0, n if n >= 3 * UNSEEN else len(pairs), min(most, self.batch)), cut(max(0, n), len(pairs), most)

    def _examples(self, step: int) -> list[Pairs]:
        """The batches of a step, drawn from a window that moves over all batches, round after round."""
        batches = self._split[0]
        per_batch = sum(map(len, batches)) / len(batches)
        width = min(len(batches), math.ceil(max(WINDOW, self.batch) / per_batch))
        n = min(width, max(1, round(self.batch / per_batch)))
        begin = step * n // USES
        # Only the prepared batches of the window stay in memory.
        window = [self._batch(at) for at in range(begin, begin + width)]
        self.probe.prepared_batches.keep_only({int(i) for batch in window for i in batch.index})
        drawn = torch.randperm(width, generator=_generator(self.seed, "examples", step), device="cpu")[:n]
        return [window[place] for place in drawn.tolist()]

    def _batch(self, place: int) -> Pairs:
        """A batch by its place in the sequence of all rounds. Each round has another random order."""
        batches = self._split[0]
        turn, place = divmod(place, len(batches))
        order = torch.randperm(len(batches), generator=_generator(self.seed, "round", turn), device="cpu")
        return batches[int(order[place])]

    def _brought_back(self, values: Tensor) -> Edges:
        """The edges by their scores, corrected so that circuits of the requested sizes are as strong as the model."""
        self.probe.prepared_batches.keep_only({int(i) for batch in self._split[1] for i in batch.index})  # makes room
        left, rest = values.sort(descending=True, stable=True).indices, list[Tensor]()
        for n in self.sizes.measured if self.match else []:
            moved = left[self._strong_as_the_model(values[left], self.edges[left], n)]
            rest.insert(0, moved[n:])
            left = moved[:n]
            left = left[values[left].sort(descending=True, stable=True).indices]
        return self.edges[torch.cat([left, *rest])]

    def _strong_as_the_model(self, values: Tensor, edges: Edges, n: int) -> Int[Tensor, " edge"]:
        """A new order of the edges, which are sorted by score, if the circuit's mean metric is clearly off."""
        order = torch.arange(len(edges), device="cpu")
        # With the effects, though they may not be needed: another run for them would take longer.
        before, effects = self._measured(edges[:n], edges)
        mean, chance = float(before.mean()), float(before.std(correction=min(1, len(before) - 1)))
        if abs(mean) <= CLEAR * chance / math.sqrt(len(before)):
            return order
        moved = distributed.broadcast_first(shifted(values, _shrunk(effects), order[:n], -mean))
        after, _ = self._measured(edges[moved[:n]], edges[:0])
        error, error_before = (float(x.abs().mean()) + abs(float(x.mean())) for x in (after, before))
        return moved if error < error_before else order

    def _measured(
        self, circuit: Int[Tensor, " circuit"], edges: Int[Tensor, " edge"]
    ) -> tuple[Float[Tensor, " example"], Float[Tensor, "example edge"]]:
        """The deviations of a circuit on the examples of the last step, and the effects of some edges there."""
        plan = self._plan(circuit.sort().values)
        parts = [self.probe.measure_on(pairs, plan, edges, [pairs]) for pairs in self._split[1]]
        deviations, effects = (torch.cat(x).double() for x in zip(*parts, strict=True))
        return deviations, effects


def _shrunk(effects: Float[Tensor, "example edge"]) -> Float[Tensor, " edge"]:
    """The mean effects, shrunk by their variance: of thousands of edges, the largest means are due to chance most."""
    mean, variance = effects.mean(0), effects.var(0, correction=min(1, len(effects) - 1)) / len(effects)
    return mean * (1 - variance / mean.square().clamp_min(torch.finfo(mean.dtype).tiny)).clamp_min(0)


def _generator(seed: int, use: str, number: int) -> torch.Generator:
    """Random numbers that depend only on the arguments, whatever was drawn before."""
    digest = sha256(repr((seed, use, number)).encode()).digest()
    return torch.Generator(device="cpu").manual_seed(int.from_bytes(digest[:4], "big"))


def shifted(
    values: Float[Tensor, " edge"], effects: Float[Tensor, " edge"], inside: Int[Tensor, " n"], change: float
) -> Int[Tensor, " edge"]:
    """The order of edges by s + lambda a, with lambda such that the circuit becomes stronger by ``change``.

    ``values`` are s and ``effects`` are a. ``inside`` are the n edges of the circuit that the effects were measured in.
    Its strength is the sum of the effects of its edges: the first n of the order.
    """
    n, goal = len(inside), float(effects[inside].sum()) + change

    def order(factor: float) -> Tensor:
        return (values + factor * effects).sort(descending=True, stable=True).indices

    def too_weak(factor: float) -> bool:
        return float(effects[order(factor)[:n]].sum()) < goal

    scale = float(values.std() / effects.std().clamp_min(torch.finfo(effects.dtype).tiny)) if n > 1 else 0.0
    sign = 1 if too_weak(0.0) else -1
    reach = [sign * scale * 2.0**power for power in range(-20, 11)]
    end = next((i for i, factor in enumerate(reach) if too_weak(factor) != (sign > 0)), len(reach) - 1)
    low, high = sorted((reach[end - 1] if end else 0.0, reach[end]))
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if too_weak(middle) else (low, middle)
    return order(high)
