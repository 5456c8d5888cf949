"""The six tests, in the order in which a verdict lists them; the package's docstring defines them.

Each measures, and leaves the decision to ``verdict.statistics``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from random import Random
from typing import Any

import torch
from torch import Tensor

from gradpath.ablation import CORRUPTED
from gradpath.attribution.attribute import attribute_at_steps
from gradpath.attribution.methods import METHODS, recorded_method
from gradpath.circuit import Circuit
from gradpath.evaluation import evaluate_many
from gradpath.evaluation.result import Result
from gradpath.model.transformer import Transformer
from gradpath.prepared import PreparedBatches
from gradpath.recipe import Recipe
from gradpath.scores import Scores
from gradpath.selection import SELECTIONS, measures, rank
from gradpath.selection.ranking import circuit_of
from gradpath.sweep import Limits, own_settings
from gradpath.tasks.task import Task
from gradpath.verdict.random_circuits import random_circuits_like
from gradpath.verdict.statistics import (
    LEVEL,
    Decision,
    Ratio,
    all_of,
    bounds,
    difference_bounds,
    enough_examples,
    mean_overlap,
    needed_edges,
    rank_test,
    within,
)

RANDOM = 19  # random circuits: with fewer, no circuit could be better than chance at 5%
WEAKEST = 20  # edges that are removed one by one
RESAMPLES, AGAIN = 100, 2  # where scores can be resampled, and where each circuit takes a selection of its own
FLOOR, MARGIN, KEPT, NEEDED, SHARED, PUBLISHED = 0.5, 0.2, 0.2, 0.9, 0.5, 0.8
FEWEST = 10  # examples
NEEDS_EXAMPLES = "needs the examples that it was found with (found_on)"
FEW, DENSE = 12, 6  # examples for what needs few, and where each circuit has a large share of all edges
WITHOUT = -1.0  # the least that an example has without the circuit: it may also lose more than its behaviour
NO_BEHAVIOUR = 0.01  # a share of the whole behaviour


@dataclass(frozen=True)
class Check:
    """The result of one test.

    Args:
        value: The measured value; None if the test could not be run.
        null: The value expected by chance, or the limit.
        decision: "yes" if the claim is shown, "no" if it is refuted, or "undecided".
        about: The result in one line, or the reason why the test could not be run.
        details: Further numbers: p values, intervals, and ``enough``, the number of examples that would decide.
    """

    value: float | None
    null: float | None
    decision: Decision
    about: str
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def passed(self) -> bool | None:
        """Whether the test is passed; None if it is undecided or could not be run."""
        return {"yes": True, "no": False, "undecided": None}[self.decision]

    def to_json(self) -> dict[str, Any]:
        """All fields, and ``passed``."""
        return {**asdict(self), "passed": self.passed}


def not_run(reason: str) -> Check:
    """A test that could not be run."""
    return Check(None, None, "undecided", reason)


def decided(
    value: float, null: float, decision: Decision, about: str, details: dict[str, Any], enough: int | None = None
) -> Check:
    """A test that was run; if it is undecided for lack of examples, ``enough`` of them would do."""
    if decision == "undecided" and enough is not None:
        details, about = {**details, "enough": enough}, f"{about}; not enough examples to tell: about {enough} would do"
    elif decision == "undecided":
        about += "; undecided"
    return Check(value, null, decision, about, details)


# What ``null`` is, where it is not the limit of the test; and the limit.
NULLS = {
    **dict.fromkeys(("sufficiency", "necessity", "stability", "rivals"), "by chance"),
    "transfer": "where found",
    "specificity": "other task",
}
_LIMITS = {
    "sufficiency": f"≥ {FLOOR}, p ≤ {LEVEL}",
    "equivalence": f"within ±{MARGIN}",
    "necessity": f"< {KEPT}, p ≤ {LEVEL}",
    "minimality": f"≥ {NEEDED}",
    "stability": f"≥ {SHARED}",
    "transfer": f"within ±{MARGIN}",
    "specificity": "> other tasks",
}


def limit_of(name: str, check: Check) -> str:
    """What a value has to be for its test to be passed; empty if the test could not be run, or decides nothing."""
    return "" if check.value is None else _LIMITS.get(name, "")


def faithfulness_ratio(result: Result, least: float = 0.0) -> Ratio:
    """The faithfulness as a ratio of means over examples; an example has ``least`` of it, or up to 2 more."""
    clean, corrupted, circuit = result.clean_values, result.corrupted_values, result.circuit_values
    return Ratio(circuit - corrupted, clean - corrupted, least, least + 2)


@dataclass(frozen=True)
class CircuitUnderTest:
    """What all tests use: the circuit, its model and examples, and a source of random circuits."""

    model: Transformer
    circuit: Circuit
    task: Task
    generator: torch.Generator
    limits: Limits
    mean_over: Task  # for the means of an ablation
    found_on: Task | None = None

    @cached_property
    def examples(self) -> PreparedBatches:
        """The examples of all tests, whose clean and corrupted runs are shared."""
        examples = PreparedBatches(self.model, self.task, self.circuit.ablation, self.limits, mean_over=self.mean_over)
        examples.batches = self.limits.batches(self.model, examples.pairs)
        return examples

    def measure(self, masks: Sequence[Tensor], task: Task | PreparedBatches | None = None) -> list[Result]:
        """Evaluate each mask of edges as a circuit, on ``task`` or the examples of all tests."""
        graph, recipe = self.circuit.graph, Recipe(ablation=self.circuit.ablation)
        circuits = [Circuit.of_mask(graph, mask, recipe) for mask in masks]
        if isinstance(task, Task):
            task = PreparedBatches(self.model, task, recipe.ablation, self.limits, mean_over=self.examples, room=0)
        return evaluate_many(self.examples if task is None else task, circuits)

    def measure_without(self, edges: Sequence[int]) -> list[Result]:
        """Evaluate the circuit without each of these edges, given as rows of ``circuit.index``."""
        masks = []
        for edge in edges:
            mask = self.circuit.mask.clone()
            mask[tuple(self.circuit.index[edge])] = False
            masks.append(mask)
        return self.measure(masks)

    def prepared(self, task: Task) -> PreparedBatches:
        """Other examples, for finding circuits on them."""
        return PreparedBatches(self.model, task, self.circuit.ablation, self.limits)

    @cached_property
    def without(self) -> Result:
        """The model without the circuit's edges."""
        return self.measure([self.circuit.graph.mask & ~self.circuit.mask])[0]

    @cached_property
    def where_found(self) -> Result:
        """The circuit on the examples that it was found on."""
        return self.measure([self.circuit.mask], self.found_on)[0]

    @cached_property
    def random_masks(self) -> list[Tensor]:
        """Random circuits: connected, and of the size and shape of the circuit."""
        seed = int(torch.randint(2**31, (), generator=self.generator, device="cpu"))
        return random_circuits_like(self.circuit.graph, self.circuit.mask, RANDOM, Random(seed))

    def random_edges(self) -> Tensor:
        """As many random edges as the circuit has, which need not be connected."""
        graph = self.circuit.graph
        edges = graph.mask.flatten().nonzero()[:, 0]
        drawn = torch.randperm(len(edges), generator=self.generator, device="cpu")[: len(self.circuit)]
        return graph.mask_of(edges[drawn]).view_as(graph.mask)


def sufficiency(tested: CircuitUnderTest, result: Result) -> Check:
    few = few_examples(tested.task, result)
    on_few, *random = tested.measure([tested.circuit.mask, *tested.random_masks], few)
    return _sufficiency(result, on_few, random)


def _sufficiency(result: Result, on_few: Result, random: Sequence[Result]) -> Check:
    """Better than random circuits, which ran on a few examples, and at least ``FLOOR`` on all examples."""
    errors = [other.error for other in random]
    p, better = rank_test(on_few.error, errors)

    def decide(times: int) -> Decision:
        low, high = bounds(faithfulness_ratio(result).repeated(times))
        return within(low, high, FLOOR, float("inf"))

    kept, (low, _) = decide(1), bounds(faithfulness_ratio(result))
    about = (
        f"error {result.error:.3f}; {len(random)} connected random circuits of its size and shape "
        f"{min(errors):.3f} to {max(errors):.3f} on "
        f"{len(on_few.clean_values)} examples (p = {p:.2f}); faithfulness {result.faithfulness:.3f}, at least "
        f"{low:.3f} (floor {FLOOR})"
    )
    median = float(torch.tensor(errors, dtype=torch.float64, device="cpu").median())
    details = {"faithfulness": result.faithfulness, "at_least": low, "p": p, "random_best": min(errors)}
    # More examples help with the floor alone.
    enough = enough_examples(len(result.clean_values), decide) if kept == "undecided" and better == "yes" else None
    return decided(result.error, median, all_of([better, kept]), about, details, enough)


def equivalence(result: Result) -> Check:
    def decide(times: int) -> Decision:
        return within(*bounds(faithfulness_ratio(result).repeated(times)), 1 - MARGIN, 1 + MARGIN)

    (low, high), off, decision = bounds(faithfulness_ratio(result)), result.faithfulness - 1, decide(1)
    about = f"off by {off:+.3f} of the behaviour [{low - 1:+.3f}, {high - 1:+.3f}], margin {MARGIN}"
    enough = enough_examples(len(result.clean_values), decide) if decision == "undecided" else None
    return decided(off, MARGIN, decision, about, {"interval": [low - 1, high - 1]}, enough)


def necessity(tested: CircuitUnderTest, result: Result) -> Check:
    graph, circuit, whole = tested.circuit.graph, tested.circuit.mask, tested.without
    masks = [circuit, *(tested.random_edges() for _ in range(RANDOM))]
    without = tested.measure([graph.mask & ~mask for mask in masks], few_examples(tested.task, result, DENSE))
    on_few, *random = (x.faithfulness for x in without)
    p, by_chance = rank_test(on_few, random)
    chance = float(torch.tensor(random, dtype=torch.float64, device="cpu").median())
    claims: list[tuple[Ratio, float, float]] = [(faithfulness_ratio(whole, WITHOUT), -float("inf"), KEPT)]
    about = (
        f"{whole.faithfulness:.3f} of the behaviour is left without it (limit {KEPT}); without as many random edges "
        f"{chance:.3f} (p = {p:.2f})"
    )
    details: dict[str, Any] = {"p": p}
    if tested.circuit.ablation == CORRUPTED:
        # The same two prompts, swapped.
        swapped = replace(tested.task, clean=tested.task.corrupted, corrupted=tested.task.clean, spans=None)
        moved = tested.measure([circuit], swapped)[0]
        details["moved"] = moved.faithfulness
        claims.append((faithfulness_ratio(moved), 1 - KEPT, float("inf")))
        about += f"; corrupting only the circuit loses {moved.faithfulness:.3f} (limit {1 - KEPT})"

    def decide(times: int) -> Decision:
        return all_of(
            [claim(partial(bounds, x.repeated(times)), least, most, len(claims)) for x, least, most in claims]
        )

    details["at_most"] = bounds(claims[0][0])[1]
    enough = enough_examples(len(tested.task), decide) if decide(1) == "undecided" and by_chance == "yes" else None
    return decided(whole.faithfulness, chance, all_of([by_chance, decide(1)]), about, details, enough)


def claim(bounds_at: Callable[[float], tuple[float, float]], least: float, most: float, n: int) -> Decision:
    """Whether a value is between two limits, as one of n claims: a "no" to any of them has the level 5% in all."""
    if within(*bounds_at(LEVEL), least, most) == "yes":
        return "yes"
    return "no" if within(*bounds_at(LEVEL / n), least, most) == "no" else "undecided"


def minimality(tested: CircuitUnderTest, result: Result) -> Check:
    circuit = tested.circuit
    weakest = circuit.scores.abs().sort(stable=True).indices[:WEAKEST].tolist()
    unit = float((result.clean_values - result.corrupted_values).abs().mean())
    results = [result, *tested.measure_without(weakest)]
    distances = torch.stack([(x.circuit_values - x.clean_values).abs() for x in results]) / unit
    loss = (distances[1:] - distances[0]).T  # (example, edge)
    loss = torch.where(loss.abs() < 1e-5, 0.0, loss)
    decision, needed, idle = needed_edges(loss, NEEDED)
    names = [circuit.edges[i] for i in weakest]
    clearly_idle = [name for name, x in zip(names, idle.tolist(), strict=True) if x]
    open_ = [name for name, x in zip(names, (needed | idle).tolist(), strict=True) if not x]
    n_needed = int(needed.sum())
    about = (
        f"{n_needed} of its {len(names)} weakest edges {'is' if n_needed == 1 else 'are'} needed, "
        f"{len(clearly_idle)} {'is' if len(clearly_idle) == 1 else 'are'} not, {len(open_)} unclear "
        f"(limit {NEEDED:.0%})"
    )
    about += (
        f"; not needed: {', '.join(clearly_idle[:3])}{' ...' if len(clearly_idle) > 3 else ''}" if clearly_idle else ""
    )
    details = {"tested": len(names), "not_needed": clearly_idle, "unclear": open_}
    enough = None
    if decision == "undecided":
        enough = enough_examples(len(loss), lambda times: needed_edges(loss.repeat(times, 1), NEEDED)[0])
    return decided(n_needed / len(names), NEEDED, decision, about, details, enough)


def why_not_again(tested: CircuitUnderTest) -> str:
    """Why the circuit cannot be found again; empty if it can."""
    recipe, name = tested.circuit.recipe, tested.circuit.selection.partition("=")[0].partition("+")[0]
    if recipe is None or recipe.method not in METHODS or name not in SELECTIONS:
        return "the circuit does not say how it was found, so it cannot be found again"
    return NEEDS_EXAMPLES if tested.found_on is None else ""


def stability(tested: CircuitUnderTest, draw: Task | None) -> Check:
    circuit, found_on, reason = tested.circuit, tested.found_on, why_not_again(tested)
    if found_on is None or reason:
        return not_run(reason)
    if measures(circuit.selection):
        # Each takes a selection of its own. The circuit and that of another draw are as good as bootstrap samples.
        again = [circuit, *_resampled(tested, draw or found_on, AGAIN, whole=draw is not None)]
        what = f"it and {AGAIN} circuits of other samples (few: each takes a selection)"
    else:
        again, what = _resampled(tested, found_on, RESAMPLES), f"{RESAMPLES} bootstrap samples"
    edges, low, high = mean_overlap(torch.stack([x.mask.flatten() for x in again]))
    nodes, *_ = mean_overlap(torch.stack([_nodes(x) for x in again]))
    n, total = len(circuit), circuit.graph.n_edges
    chance = n / (2 * total - n)
    about = (
        f"mean pairwise Jaccard index {edges:.2f} [{low:.2f}, {high:.2f}] of edges (limit {SHARED}, published bar "
        f"{PUBLISHED}), {nodes:.2f} of nodes, over {what}; random {chance:.2f}"
    )
    details: dict[str, Any] = {"interval": [low, high], "nodes": nodes, "circuits": len(again), "published": PUBLISHED}
    decision = within(low, high, max(SHARED, chance), float("inf"))
    if again[0] is not circuit:
        alike = torch.tensor([circuit.compare(x).jaccard_edges for x in again], dtype=torch.float64, device="cpu")
        details["with_circuit"] = float(alike.mean())
        about += f"; {float(alike.mean()):.2f} with the circuit itself"
        if float(alike.mean() + 2 * alike.std() / len(again) ** 0.5) < SHARED:
            decision = "no"  # they agree with each other, but not with the circuit
    return decided(edges, chance, decision, about, details)


def _nodes(circuit: Circuit) -> Tensor:
    """The nodes of a circuit but ``input`` and ``logits``, which all have."""
    names = set(circuit.nodes)
    return torch.tensor([name in names for name in circuit.graph.sources[1:]], device="cpu")


def _resampled(tested: CircuitUnderTest, task: Task, times: int, *, whole: bool = False) -> list[Circuit]:
    """The circuits of bootstrap samples of the examples, of which the first may be ``whole``: one attribution."""
    examples, again, runs = tested.prepared(task), list[Circuit](), measures(tested.circuit.selection)
    scores = scores_again(tested, examples, per_example=True)
    assert scores.examples is not None
    for _ in range(times):
        rows, sample = torch.arange(len(task), device="cpu"), examples
        if again or not whole:
            rows = torch.randint(len(task), rows.shape, generator=tested.generator, device="cpu")
            sample = tested.prepared(task.take(rows.tolist())) if runs else examples
        values = torch.tensordot(torch.bincount(rows, minlength=len(task)) / len(task), scores.examples, 1)
        again.append(circuit_again(tested, replace(scores, values=values, examples=None), sample))
    return again


def scores_again(tested: CircuitUnderTest, examples: PreparedBatches, *, per_example: bool = False) -> Scores:
    """The scores of the circuit's method on these examples."""
    method, options = recorded_method(tested.circuit.recipe or Recipe())
    with own_settings(tested.model):
        *_, scores = attribute_at_steps(examples, method, options, per_example=per_example)
    return scores


def circuit_again(
    tested: CircuitUnderTest, scores: Scores, examples: PreparedBatches, forbidden: Sequence[int] = ()
) -> Circuit:
    """The circuit that the circuit's selection finds by these scores, without some edges."""
    n, recipe, name = tested.circuit.requested, tested.circuit.recipe or Recipe(), tested.circuit.selection
    excluded = torch.tensor(forbidden, dtype=torch.long, device="cpu")
    values = scores.values.flatten().index_fill(0, excluded, 0.0)
    scores, largest = replace(scores, values=values.view_as(scores.values)), min(n + len(excluded), scores.n_edges)
    order = rank(scores, name, sizes=[n], largest=largest, prepared=examples, resamples=recipe.resamples)
    edges = order.edges[~torch.isin(order.edges, excluded)]
    return circuit_of(scores, edges[: order.size or n], selection=name)


def shared_pairs(task: Task, attributed: Task | None) -> int:
    """How many examples of a task were attributed."""

    def pairs(task: Task) -> list[tuple[Any, Any]]:
        columns = (x.tolist() if isinstance(x, Tensor) else x for x in (task.clean, task.corrupted))
        return [(str(clean), str(corrupted)) for clean, corrupted in zip(*columns, strict=True)]

    known = set() if attributed is None else set(pairs(attributed))
    return sum(pair in known for pair in pairs(task))


def transfer(tested: CircuitUnderTest, result: Result, reworded: Task | None, shared: int = 0) -> Check:
    """The faithfulness on other examples; ``shared`` of the tested ones were attributed."""
    if tested.found_on is None:
        return not_run(NEEDS_EXAMPLES)
    before = tested.where_found
    where = (
        f"the tested examples, of which {shared} of {len(tested.task)} were attributed" if shared else "other examples"
    )
    elsewhere, places = [result], [where]
    if reworded is not None:
        elsewhere.append(tested.measure([tested.circuit.mask], reworded)[0])
        places.append("other templates")
    about = f"faithfulness {before.faithfulness:.3f} on the examples it was found with; off by "
    ends = [difference_bounds(faithfulness_ratio(x), faithfulness_ratio(before)) for x in elsewhere]
    differences = [x.faithfulness - before.faithfulness for x in elsewhere]
    about += ", ".join(
        f"{off:+.3f} [{low:+.3f}, {high:+.3f}] on {place}"
        for off, (low, high), place in zip(differences, ends, places, strict=True)
    )
    decide = _transfer_decision(before, elsewhere)
    enough = enough_examples(len(tested.task), decide) if decide(1) == "undecided" else None
    worst = max(range(len(elsewhere)), key=lambda i: abs(differences[i]))
    details: dict[str, Any] = {"interval": list(ends[0])}
    if reworded is not None:
        details |= {"reworded": elsewhere[1].faithfulness, "reworded_interval": list(ends[1])}
    value = elsewhere[worst].faithfulness
    return decided(value, before.faithfulness, decide(1), f"{about}; margin {MARGIN}", details, enough)


def _transfer_decision(before: Result, elsewhere: Sequence[Result]) -> Callable[[int], Decision]:
    """Whether the faithfulness is the same everywhere, up to the margin, if there were several times the examples."""

    def decide(times: int) -> Decision:
        first, *ratios = (faithfulness_ratio(x).repeated(times) for x in (before, *elsewhere))
        return all_of([claim(partial(difference_bounds, x, first), -MARGIN, MARGIN, len(ratios)) for x in ratios])

    return decide


def few_examples(task: Task, result: Result, n: int = FEW) -> Task:
    """The first examples, as many as show the behaviour: a metric such as accuracy may not differ on a few."""
    behaviour = (result.clean_values - result.corrupted_values).double()
    while n < len(task) and abs(float(behaviour[:n].mean())) < NO_BEHAVIOUR * abs(float(behaviour.mean())):
        n *= 2
    return task[:n]
