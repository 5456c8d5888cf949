"""The six tests, in the order in which a verdict lists them; the package's docstring defines them.

Their p values are exact or from resampling: nothing is assumed to be normal. ``quick_checks`` are the two tests that
``find`` makes of every circuit, from its own measurements and a few runs of random circuits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from gradpath.ablation import CORRUPTED
from gradpath.attribution.attribute import attribute_at_steps
from gradpath.attribution.methods import METHODS, recorded_method
from gradpath.circuit import Circuit
from gradpath.evaluation import evaluate_many
from gradpath.evaluation.result import Result
from gradpath.graph import pruned
from gradpath.limits import Limits
from gradpath.model.transformer import Transformer
from gradpath.recipe import Recipe
from gradpath.scores import Scores
from gradpath.selection import SELECTIONS, rank
from gradpath.sweep import own_settings
from gradpath.tasks.task import Task

RANDOM = 20  # random circuits of each kind
WEAKEST = 20  # edges that are removed one by one
SAMPLES = 4
FLIPS, LEVEL = 4096, 0.05  # random signs, and the level of all tests
MARGIN, KEPT, APART, NEEDED, SHARED = 0.1, 0.2, 0.5, 0.9, 0.5
FEWEST = 10  # examples: with fewer, no test could reject anything
FEW, NO_BEHAVIOUR = 12, 0.01  # examples for what needs few; a share of the whole behaviour
QUICK = 19  # random circuits: with fewer, no circuit could be better than chance at 5%


@dataclass(frozen=True)
class Check:
    """The result of one test.

    Args:
        value: The measured value.
        null: The value expected by chance, or the limit.
        passed: Whether the test is passed; None if it could not be run.
        about: The result in one line, or the reason why the test could not be run.
        details: Further numbers.
    """

    value: float | None
    null: float | None
    passed: bool | None
    about: str
    details: dict[str, Any] = field(default_factory=dict)


# What ``null`` is, where it is not the limit of the test; and the limit.
NULLS = {"sufficiency": "by chance", "necessity": "by chance", "stability": "by chance", "transfer": "where found"}
_LIMITS = {
    "sufficiency": f"p ≤ {LEVEL}",
    "equivalence": f"within ±{MARGIN}",
    "necessity": f"< {KEPT}",
    "minimality": f"≥ {NEEDED}",
    "stability": f"≥ {SHARED}",
}


def limit_of(name: str, check: Check) -> str:
    """What a value has to be for its test to be passed; empty if the test could not be run."""
    if check.value is None or check.null is None:
        return ""
    return f"≥ {check.null - MARGIN:.2f}" if name == "transfer" else _LIMITS[name]


@dataclass(frozen=True)
class CircuitUnderTest:
    """What all tests use: the circuit, its model and examples, and a source of random circuits."""

    model: Transformer
    circuit: Circuit
    task: Task
    generator: torch.Generator
    limits: Limits
    mean_over: Task  # for the means of an ablation

    def measure(self, masks: Sequence[Tensor], task: Task | None = None) -> list[Result]:
        """Evaluate each mask of edges as a circuit, on ``task`` or the examples of all tests."""
        graph, recipe = self.circuit.graph, Recipe(ablation=self.circuit.ablation)
        circuits = [Circuit.of_mask(graph, mask, recipe) for mask in masks]
        examples = self.task if task is None else task
        return evaluate_many(self.model, circuits, examples, self.limits, mean_over=self.mean_over)

    def measure_without(self, edges: Sequence[int]) -> list[Result]:
        """Evaluate the circuit without each of these edges, given as rows of ``circuit.index``."""
        masks = []
        for edge in edges:
            mask = self.circuit.mask
            mask[tuple(self.circuit.index[edge])] = False
            masks.append(mask)
        return self.measure(masks)

    def random_mask(self, *, by_layer: bool) -> Bool[Tensor, "source target"]:
        """As many random edges as the circuit has, in total or into every layer."""
        graph, mask = self.circuit.graph, self.circuit.mask
        drawn = torch.zeros_like(mask)
        for layer in range(graph.n_layers + 1) if by_layer else [None]:
            candidates = graph.mask if layer is None else graph.mask & (graph.layers_of_targets == layer)
            edges = candidates.flatten().nonzero()[:, 0]
            n = int((mask & candidates).sum())
            chosen = edges[torch.randperm(len(edges), generator=self.generator, device="cpu")[:n]]
            drawn.view(-1)[chosen] = True
        return drawn


def sufficiency(tested: CircuitUnderTest, result: Result) -> Check:
    graph, n = tested.circuit.graph, len(tested.circuit)
    masks = {
        "edges": [tested.random_mask(by_layer=False) for _ in range(RANDOM)],
        "edges of every layer": [tested.random_mask(by_layer=True) for _ in range(RANDOM)],
    }
    seeds = [int(torch.randint(2**31, (), generator=tested.generator, device="cpu")) for _ in range(RANDOM)]
    zeros = Scores(graph, torch.zeros(graph.mask.shape, device="cpu"))
    masks["paths"] = [rank(zeros, f"random-paths+seed={seed}", sizes=[n])[:n].mask for seed in seeds]
    errors = {kind: [x.error for x in tested.measure(drawn)] for kind, drawn in masks.items()}
    cut = sum(not pruned(graph, mask).any() for drawn in masks.values() for mask in drawn)
    p = {kind: p_value(result.error, values) for kind, values in errors.items()}
    medians = {kind: float(torch.tensor(values).median()) for kind, values in errors.items()}
    best = min(min(values) for values in errors.values())
    about = (
        f"error {result.error:.3f} (faithfulness {result.faithfulness:.3f}); random circuits of the same size "
        f"{medians['edges']:.3f}, of the same layers {medians['edges of every layer']:.3f}, of random paths "
        f"{medians['paths']:.3f}, best {best:.3f} (p = {max(p.values()):.3f})"
    )
    about += f"; {cut} of these {len(masks) * RANDOM} have no path from input to logits" if cut else ""
    details = {
        "faithfulness": result.faithfulness,
        "p": p,
        "random_median": medians,
        "random_best": best,
        "no_path": cut,
    }
    return Check(result.error, min(medians.values()), max(p.values()) <= LEVEL, about, details)


def equivalence(result: Result) -> Check:
    gap = (result.circuit_values - result.clean_values).double()
    unit = float((result.clean_values - result.corrupted_values).abs().double().mean())
    wins, losses = (int((sign * gap > 1e-5 * unit).sum()) for sign in (1, -1))
    p, (low, high) = sign_test(wins, losses), result.interval
    off, passed = result.faithfulness - 1, max(abs(low - 1), abs(high - 1)) <= MARGIN
    about = (
        f"off by {off:+.3f} of the behaviour [{low - 1:+.3f}, {high - 1:+.3f}], margin {MARGIN}; stronger than the "
        f"model on {wins}, weaker on {losses} of {len(gap)} examples (sign test p = {p:.3f})"
    )
    if not passed and abs(off) <= MARGIN:
        about += "; the value is within the margin, but its interval is too wide to show it: test on more examples"
    return Check(off, MARGIN, passed, about, {"interval": [low - 1, high - 1], "wins": wins, "losses": losses, "p": p})


def necessity(tested: CircuitUnderTest) -> Check:
    graph, circuit = tested.circuit.graph, tested.circuit.mask
    masks = [circuit, *(tested.random_mask(by_layer=False) for _ in range(RANDOM))]
    left, *left_by_chance = (x.faithfulness for x in tested.measure([graph.mask & ~mask for mask in masks]))
    chance = float(torch.tensor(left_by_chance).median())
    about = f"{left:.3f} of the behaviour is left without it (limit {KEPT}); without as many random edges {chance:.3f}"
    details: dict[str, Any] = {"p": p_value(left, left_by_chance)}
    passed = left < KEPT and left <= chance - APART
    if tested.circuit.ablation == CORRUPTED:
        # The same two prompts, exchanged.
        exchanged = replace(tested.task, clean=tested.task.corrupted, corrupted=tested.task.clean, spans=None)
        details["moved"] = tested.measure([circuit], exchanged)[0].faithfulness
        passed = passed and details["moved"] > 1 - KEPT
        about += f"; corrupting only the circuit loses {details['moved']:.3f} (limit {1 - KEPT})"
    return Check(left, chance, passed, about, details)


def minimality(tested: CircuitUnderTest, result: Result) -> Check:
    circuit = tested.circuit
    weakest = circuit.scores.abs().sort(stable=True).indices[:WEAKEST].tolist()
    unit = float((result.clean_values - result.corrupted_values).abs().mean())
    results = [result, *tested.measure_without(weakest)]
    distances = torch.stack([(x.circuit_values - x.clean_values).abs() for x in results]) / unit
    loss = (distances[1:] - distances[0]).T  # (example, edge)
    loss = torch.where(loss.abs() < 1e-5, 0.0, loss)
    needed = holm(sign_flip_p(loss, tested.generator))
    idle = [circuit.edges[i] for i, matters in zip(weakest, needed.tolist(), strict=True) if not matters]
    share, n_needed = float(needed.double().mean()), int(needed.sum())
    verb = "is" if n_needed == 1 else "are"
    about = f"{n_needed} of its {len(weakest)} weakest edges {verb} clearly needed (limit {NEEDED:.0%})"
    about += f"; not clearly: {', '.join(idle[:3])}{' ...' if len(idle) > 3 else ''}" if idle else ""
    return Check(share, NEEDED, share >= NEEDED, about, {"tested": len(weakest), "not_needed": idle})


def stability(tested: CircuitUnderTest, found_on: Task | None, draws: Sequence[Task]) -> Check:
    circuit = tested.circuit
    selection = circuit.selection.partition("=")[0].partition("+")[0]
    if circuit.recipe is None or circuit.recipe.method not in METHODS or selection not in SELECTIONS:
        return Check(None, None, None, "the circuit does not say how it was found, so it cannot be found again")
    if found_on is None:
        return Check(None, None, None, "needs the examples that it was found with (found_on)")
    size = (len(found_on),)
    rows = [
        torch.randint(len(found_on), size, generator=tested.generator, device="cpu").tolist() for _ in range(SAMPLES)
    ]
    samples = [_find_again(tested, found_on.take(sample)) for sample in rows]
    others = [_find_again(tested, draw) for draw in draws]
    compared = [circuit.compare(sample) for sample in samples]
    bootstrap = sum(x.jaccard_edges for x in compared) / SAMPLES
    nodes = sum(x.jaccard_nodes for x in compared) / SAMPLES
    n, total = len(circuit), circuit.graph.n_edges
    chance = n / (2 * total - n)
    about = (
        f"Jaccard {bootstrap:.2f} of edges (limit {SHARED}), {nodes:.2f} of nodes over {SAMPLES} bootstrap samples; "
        f"random {chance:.2f}"
    )
    details: dict[str, Any] = {"nodes": nodes}
    if others:
        details["draws"] = sum(circuit.compare(other).jaccard_edges for other in others) / len(others)
        about += f"; {details['draws']:.2f} of edges over {len(others)} other draw{'s' * (len(others) > 1)}"
    return Check(bootstrap, chance, bootstrap >= max(SHARED, chance), about, details)


def _find_again(tested: CircuitUnderTest, task: Task) -> Circuit:
    """The circuit that the same method and selection find on these examples."""
    model, circuit, limits = tested.model, tested.circuit, tested.limits
    assert circuit.recipe is not None
    method, options = recorded_method(circuit.recipe)
    with own_settings(model):
        *_, scores = attribute_at_steps(model, task, method, options, limits=limits, ablation=circuit.ablation)
    order = rank(scores, circuit.selection, model, task, sizes=[circuit.requested], limits=limits)
    return order.circuit(circuit.requested if order.size is None else order.size)


def shared_pairs(task: Task, attributed: Task | None) -> int:
    """How many examples of a task were attributed."""

    def pairs(task: Task) -> list[tuple[Any, Any]]:
        columns = (x.tolist() if isinstance(x, Tensor) else x for x in (task.clean, task.corrupted))
        return [(str(clean), str(corrupted)) for clean, corrupted in zip(*columns, strict=True)]

    known = set() if attributed is None else set(pairs(attributed))
    return sum(pair in known for pair in pairs(task))


def transfer(
    tested: CircuitUnderTest, result: Result, found_on: Task | None, reworded: Task | None, shared: int = 0
) -> Check:
    """The faithfulness on other examples; ``shared`` of the tested ones were attributed."""
    if found_on is None:
        return Check(None, None, None, "needs the examples that it was found with (found_on)")
    before = tested.measure([tested.circuit.mask], found_on)[0].faithfulness
    where = "other examples"
    if shared:
        where = f"the tested examples, of which {shared} of {len(tested.task)} were attributed"
    about = f"faithfulness {result.faithfulness:.3f} on {where}, {before:.3f} on those it was found with"
    least, details = result.faithfulness, dict[str, Any]()
    if reworded is not None:
        details["reworded"] = tested.measure([tested.circuit.mask], reworded)[0].faithfulness
        least = min(least, details["reworded"])
        about += f", {details['reworded']:.3f} in other templates"
    about += f"; margin {MARGIN}"
    return Check(least, before, least >= before - MARGIN, about, details)


def p_value(value: float, others: Sequence[float]) -> float:
    """The share of circuits with at most this value, among the random ones and the circuit itself."""
    return (1 + sum(other <= value for other in others)) / (1 + len(others))


def sign_test(wins: int, losses: int) -> float:
    """The two-sided p value of a split of wins and losses that is at least as uneven, if both are equally likely.

    >>> sign_test(0, 6), sign_test(3, 3)
    (0.03125, 1.0)
    """
    from scipy.stats import binomtest

    return float(binomtest(wins, wins + losses).pvalue) if wins + losses else 1.0


def sign_flip_p(losses: Float[Tensor, "example edge"], generator: torch.Generator) -> Float[Tensor, " edge"]:
    """For each edge, how often the mean loss is at least as large when the signs of the examples are random."""
    signs = 2.0 * torch.randint(2, (FLIPS, len(losses)), generator=generator, device="cpu") - 1
    observed, random = losses.double().mean(0), signs.double() @ losses.double() / len(losses)
    return (1 + (random >= observed - 1e-12).sum(0)) / (1 + FLIPS)


def holm(p: Float[Tensor, " edge"], level: float = LEVEL) -> Bool[Tensor, " edge"]:
    """Which hypotheses are rejected by Holm's step-down procedure.

    >>> holm(torch.tensor([0.01, 0.04, 0.03])).tolist()
    [True, False, False]
    """
    order = p.argsort()
    steps = p[order] <= level / torch.arange(len(p), 0, -1, device="cpu")
    rejected = torch.zeros_like(steps)
    rejected[order] = steps.cumprod(0).bool()
    return rejected


def few_examples(task: Task, result: Result) -> Task:
    """The first examples, as many as show the behaviour: a metric such as accuracy may not differ on a few."""
    n, behaviour = FEW, (result.clean_values - result.corrupted_values).double()
    while n < len(task) and abs(float(behaviour[:n].mean())) < NO_BEHAVIOUR * abs(float(behaviour.mean())):
        n *= 2
    return task[:n]


def quick_checks(result: Result, on_few: Result, random: Sequence[Result]) -> dict[str, Check]:
    """Test whether a circuit is better than chance, and equivalent to the model.

    Args:
        result: The circuit on all examples.
        on_few: The circuit on the few examples that the random circuits ran on.
        random: Circuits of random paths, of the same size, on these examples.

    Returns:
        The tests of sufficiency, against random paths alone, and of equivalence.
    """
    n = len(result.clean_values)
    if n < FEWEST:
        reason = f"needs at least {FEWEST} examples to measure on: there {'is' if n == 1 else 'are'} {n}"
        return dict.fromkeys(("sufficiency", "equivalence"), Check(None, None, None, reason))
    errors = [other.error for other in random]
    p = p_value(on_few.error, errors)
    about = (
        f"error {result.error:.3f} (faithfulness {result.faithfulness:.3f}); {len(random)} circuits of random paths "
        f"with as many edges, on {len(on_few.clean_values)} examples, {min(errors):.3f} to {max(errors):.3f}"
    )
    median = float(torch.tensor(errors, device="cpu").median())
    details = {"faithfulness": result.faithfulness, "p": p}
    sufficient = Check(result.error, median, p <= LEVEL, about, details)
    return {"sufficiency": sufficient, "equivalence": equivalence(result)}
