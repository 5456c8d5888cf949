"""Measure circuits on the examples of an attribution, for selections that decide by it (``refine``, ``learned``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gradpath.evaluation.circuit_gradients import edge_effects, loss_gradient
from gradpath.evaluation.patched_run import Plan, plan_of
from gradpath.model.transformer import Transformer
from gradpath.prepared import PreparedBatches
from gradpath.runtime import distributed
from gradpath.scores import Scores
from gradpath.selection.ranking import circuit_of
from gradpath.sweep import ACCELERATOR, BATCH, sweep
from gradpath.tasks.task import Pairs, Task

START = 0.1  # the largest share of all edges that is measured: ``refined`` starts from it
PARTS = 4  # of the examples: a resample has half of them
ROWS = 180  # of a batch on a CPU: more are hardly faster, and take more memory
PADDING = 0.3  # what a position costs that is in a batch only because of other examples, in rows
MAX_EFFECTS = 2**26  # kept at once, one for every example and edge: a quarter of a gigabyte


@dataclass(frozen=True)
class CircuitProbe:
    """Measures circuits: how far each example is off, and what each edge does, or would do, about it."""

    model: Transformer
    task: Task
    scores: Scores
    pairs: Pairs  # in an order that looks random, so that the first of them are a sample
    rows: int  # examples times positions in a batch
    prepared_batches: PreparedBatches

    @classmethod
    def of(cls, examples: PreparedBatches, scores: Scores, *, rows: int = ROWS) -> CircuitProbe:
        """A probe on the examples, or on as many as there is memory for.

        ``rows`` are those of a batch on a CPU; other devices take more. Batches depend on the examples alone, not on
        the limits: another batch size rounds otherwise, and a descent would end at other edges.
        """
        model, pairs = examples.model, examples.pairs
        pairs = pairs.rows(_shuffled(pairs)[: max(1, MAX_EFFECTS // start_size(scores.graph.n_edges))])
        most_rows = rows if model.device.type == "cpu" else ACCELERATOR * rows
        return cls(model, examples.task, scores, pairs, most_rows, examples)

    @cached_property
    def parts(self) -> list[tuple[Int[Tensor, " example"], list[Pairs]]]:
        """All examples in ``PARTS`` parts, or one if they are fewer: their rows, and the same in batches."""
        n_parts = PARTS if len(self.pairs) >= PARTS else 1
        parts = torch.arange(len(self.pairs), device="cpu").tensor_split(n_parts)
        return [(rows, self.pairs.rows(rows).tight_batches(self.rows, len(rows), BATCH, PADDING)) for rows in parts]

    def examples_of(self, parts: Sequence[int]) -> Int[Tensor, " example"]:
        """The numbers, in the task, of the examples of some parts."""
        return torch.cat([self.pairs.index[self.parts[part][0]] for part in parts]).cpu()

    def measure(
        self, circuit: Int[Tensor, " inside"], edges: Int[Tensor, " edge"], parts: Sequence[int]
    ) -> tuple[Float[Tensor, " example"], Float[Tensor, "example edge"]]:
        """Measure a circuit that is pruned.

        Args:
            circuit: The edges of the circuit.
            edges: The edges whose effects are measured, inside or outside the circuit.
            parts: The numbers of the parts of the examples to measure on.

        Returns:
            The deviations of the examples, and the effects of the edges.
        """
        plan = plan_of(self.model, circuit_of(self.scores, circuit, prune=False))
        if len(self.pairs) == len(self.task):  # a search for the size of the circuit uses the same batches
            self.prepared_batches.batches = [batch for _, batches in self.parts for batch in batches]
        pairs = self.pairs.rows(torch.cat([self.parts[part][0] for part in parts]))
        return self.measure_on(pairs, plan, edges, [batch for part in parts for batch in self.parts[part][1]])

    def measure_on(
        self, pairs: Pairs, plan: Plan, edges: Int[Tensor, " edge"], batches: Sequence[Pairs]
    ) -> tuple[Float[Tensor, " example"], Float[Tensor, "example edge"]]:
        """As ``measure``, for a plan, whose edges may have weights, on some of the examples."""
        # Zeros, so that the sum over ranks puts every example's values in their place.
        deviations = torch.zeros(len(pairs), device="cpu")
        effects = torch.zeros(len(pairs), len(edges), device="cpu")
        row = {int(example): row for row, example in enumerate(pairs.index)}

        def measure(batch: Pairs) -> tuple[Tensor, Tensor]:
            prepared, goal, _ = self.prepared_batches.prepare(batch)
            value, effect = edge_effects(prepared, plan, self.task.metric, edges)
            deviation, effect = (value - goal).float().cpu(), effect.float().cpu()
            rows = [row[int(example)] for example in batch.index]
            deviations[rows], effects[rows] = deviation, effect
            return deviation, effect

        self._sweep(measure, pairs, plan, edges, batches)
        return distributed.all_sum(deviations), distributed.all_sum(effects)

    def gradient_on(
        self, pairs: Pairs, plan: Plan, edges: Int[Tensor, " edge"], loss: Callable[[Tensor], Tensor]
    ) -> Float[Tensor, " edge"]:
        """The gradient of a loss with respect to the weights of some edges, on a batch.

        ``loss`` is a function of the deviations of the examples: a sum over them.
        """
        total = torch.zeros(len(edges), dtype=torch.float64, device="cpu")

        def measure(batch: Pairs) -> Tensor:
            prepared, goal, _ = self.prepared_batches.prepare(batch)
            _, gradient = loss_gradient(prepared, plan, self.task.metric, edges, lambda value: loss(value - goal))
            total.add_(gradient)
            return gradient

        self._sweep(measure, pairs, plan, edges, [pairs])
        return distributed.all_sum(total)

    def _sweep(
        self,
        measure: Callable[[Pairs], Tensor | tuple[Tensor, Tensor]],
        pairs: Pairs,
        plan: Plan,
        edges: Int[Tensor, " edge"],
        batches: Sequence[Pairs],
    ) -> None:
        """Measure a circuit on every batch."""

        def same() -> object:
            return plan.sources.numpy().tobytes(), edges.numpy().tobytes()

        doing = "the selection of edges"
        for _ in sweep(self.model, self.task, pairs, batches, measure, doing=doing, same=same):
            pass


def start_size(n_edges: int) -> int:
    """The number of edges that ``refined`` starts from, of so many in the model."""
    return max(1, round(START * n_edges))


def _shuffled(pairs: Pairs) -> Int[Tensor, " example"]:
    """The examples in an order that looks random, but depends on nothing but their own tokens."""
    keys = []
    for clean, corrupted, last in zip(pairs.clean.cpu(), pairs.corrupted.cpu(), pairs.last.tolist(), strict=True):
        tokens = torch.cat([clean[: last + 1], corrupted[: last + 1]])
        keys.append(sha256(tokens.long().numpy().tobytes()).digest())
    return torch.tensor(sorted(range(len(keys)), key=keys.__getitem__), device="cpu")
