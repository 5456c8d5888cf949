r"""``test``: should a circuit be believed? Six tests, each a number, what it would be by chance, and what it means.

A high faithfulness says little by itself: a circuit can be too large, fit its examples, leave out a part that backs it
up, or be one of many. With H the circuit, M the model, m_i the metric of example i, and the behaviour the mean
difference between clean and corrupted prompts:

``sufficiency``  The error of H against that of random circuits: with as many edges, and with as many into every
                 layer. Passed if at most 5% of them are as good (Shi et al. 2024, arXiv 2410.13032).
``equivalence``  How far H's mean metric is from M's, in shares of the behaviour. Passed if the 95% interval over
                 examples is within a margin of 0.1. And how often H beats M, with the p value of a sign test (Shi et
                 al.).
``necessity``    Both directions of patching. The share of the behaviour that is left when H's edges are corrupted and
                 all others run; passed if it is below 0.2, and as many random edges leave at least 0.5 more. And how
                 far the metric moves when H alone runs on the corrupted prompts and all others are clean: below 0.8,
                 something outside of H backs it up (OR).
``minimality``   The share of H's weakest edges that it needs: without such an edge, the examples are further from M (a
                 sign-flip test over examples, Holm's correction for as many edges). Passed from 0.9 on. An edge that
                 another one backs up inside of H is not needed by this definition.
``stability``    The Jaccard index of the edges of circuits that are found again, in the same way, on bootstrap samples
                 of the examples and on other draws (arXiv 2510.00845). Passed from 0.5 on.
``transfer``     The faithfulness on other words, and on the examples that the circuit was found with. Passed if the
                 first is not lower by more than the margin.

What faithfulness means depends on the ablation and on what is ablated (Miller et al. 2024, arXiv 2407.08734); all tests
use the circuit's own ablation. A test that cannot be made says why, and does not count.

Cost: ``RANDOM`` circuits and half as many complements, at most ``WEAKEST`` circuits, and ``SAMPLES`` attributions and
selections.
"""

# ruff: noqa: PT028  (it is called test because that is what users type)
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from gradpath.ablation import CORRUPTED
from gradpath.attribution.attribute import attribute
from gradpath.attribution.methods import METHODS
from gradpath.circuit import Circuit
from gradpath.errors import InputError
from gradpath.evaluation.evaluate import evaluate
from gradpath.evaluation.plan import check_same_graph
from gradpath.evaluation.result import Result
from gradpath.model.transformer import Transformer
from gradpath.selection import SELECTIONS, find_selection, select
from gradpath.sweep import Limits
from gradpath.tasks.task import Task

FEWEST = 10  # examples: with fewer, no test could reject anything
RANDOM = 40  # random circuits, half of each kind
WEAKEST = 20  # edges that are removed one by one
SAMPLES = 4
FLIPS = 4096
LEVEL, MARGIN, KEPT, APART, NEEDED, SHARED = 0.05, 0.1, 0.2, 0.5, 0.9, 0.5
NAMES = ("sufficiency", "equivalence", "necessity", "minimality", "stability", "transfer")


@dataclass(frozen=True)
class Check:
    """One test: its number, what that would be by chance or at most, whether it is passed, and what it means.

    ``passed`` is None if the test could not be made; ``about`` then says why.
    """

    value: float | None
    null: float | None
    passed: bool | None
    about: str
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, repr=False)
class Verdict:
    """The six tests of a circuit on a task."""

    sufficiency: Check
    equivalence: Check
    necessity: Check
    minimality: Check
    stability: Check
    transfer: Check
    model: str
    task: str
    examples: int
    edges: int

    @property
    def checks(self) -> dict[str, Check]:
        """The tests by name."""
        return {name: getattr(self, name) for name in NAMES}

    @property
    def passed(self) -> bool:
        """Whether every test that could be made is passed."""
        return all(check.passed is not False for check in self.checks.values())

    @property
    def verdict(self) -> str:
        """One line: which tests are passed."""
        made = {name: check for name, check in self.checks.items() if check.passed is not None}
        failed = [name for name, check in made.items() if not check.passed]
        if not failed:
            return f"passes all {len(made)} tests"
        *some, last = failed
        names = f"{', '.join(some)} and {last}" if some else last
        return f"fails {names}; passes {len(made) - len(failed)} of {len(made)} tests"

    def to_json(self) -> dict[str, Any]:
        """All numbers as plain values, as ``gradpath test --json`` prints them."""
        facts = {"model": self.model, "task": self.task, "examples": self.examples, "edges": self.edges}
        return {**facts, **{name: asdict(check) for name, check in self.checks.items()}, "verdict": self.verdict}

    def __repr__(self) -> str:
        head = f"<Verdict on {self.edges:,} edges, {self.examples} examples of {self.task} in {self.model}>"
        signs = {True: "pass", False: "FAIL", None: "   -"}
        lines = [f"  {signs[check.passed]}  {name:<12} {check.about}" for name, check in self.checks.items()]
        return "\n".join([head, *lines, f"  The circuit {self.verdict}."])


def test(
    model: Transformer,
    circuit: Circuit,
    task: Task,
    *,
    found_on: Task | None = None,
    draws: Sequence[Task] = (),
    seed: int = 0,
    batch_size: int | None = None,
    memory: int | None = None,
) -> Verdict:
    """Test whether a circuit should be believed.

    Args:
        model: The model that the circuit is of.
        circuit: The circuit.
        task: The examples to test on; not those that the circuit was found with. At least 10.
        found_on: The examples that the circuit was found with, for the tests of stability and transfer.
        draws: Other draws of those examples, for the test of stability.
        seed: For random circuits and samples.
        batch_size: The largest number of examples in a batch; by default it follows from the prompts and the memory.
        memory: A budget in bytes, weights included; by default the weights and half of the memory that is free.

    Returns:
        The verdict; print it, or see ``.passed``, ``.necessity.value`` and ``.to_json()``.
    """
    check_same_graph(model, circuit)
    if len(task) < FEWEST:
        raise InputError(
            f"a test of a circuit needs at least {FEWEST} examples: {task.name!r} has {len(task)}. "
            "With fewer, chance could explain any result. Give more."
        )
    if not len(circuit) or circuit.spans:
        what = "has no edges" if not len(circuit) else "has its edges at parts of the prompt: test circuit.anywhere()"
        raise InputError(f"this circuit cannot be tested: it {what}.")
    lab = _Lab(model, circuit, task, torch.Generator(device="cpu").manual_seed(seed), Limits(batch_size, memory))
    own = lab.measure([circuit.mask])[0]
    return Verdict(
        sufficiency=_sufficiency(lab, own),
        equivalence=_equivalence(own),
        necessity=_necessity(lab),
        minimality=_minimality(lab, own),
        stability=_stability(lab, found_on, draws),
        transfer=_transfer(lab, own, found_on),
        model=model.name,
        task=task.name,
        examples=len(task),
        edges=len(circuit),
    )


@dataclass(frozen=True)
class _Lab:
    """What all tests use: the circuit, its model and examples, and a source of random circuits."""

    model: Transformer
    circuit: Circuit
    task: Task
    dice: torch.Generator
    limits: Limits

    def measure(self, masks: Sequence[Tensor], task: Task | None = None) -> list[Result]:
        """Each set of edges as a circuit, on the examples."""
        graph, about = self.circuit.graph, {"ablation": self.circuit.provenance.ablation}
        circuits = []
        for mask in masks:
            index = mask.nonzero()
            circuits.append(Circuit(graph, index, torch.zeros(len(index), device="cpu"), about))
        examples = self.task if task is None else task
        return evaluate(self.model, circuits, examples, batch_size=self.limits.batch_size, memory=self.limits.memory)

    def random_mask(self, *, by_layer: bool) -> Bool[Tensor, "source target"]:
        """As many random edges as the circuit has, in all or into every layer."""
        graph, own = self.circuit.graph, self.circuit.mask
        drawn = torch.zeros_like(own)
        layers = torch.tensor([graph.layer_of_target(v) for v in range(graph.n_targets)], device="cpu")
        for layer in range(graph.n_layers + 1) if by_layer else [None]:
            here = graph.mask if layer is None else graph.mask & (layers == layer)
            edges = here.flatten().nonzero()[:, 0]
            n = int((own & here).sum())
            chosen = edges[torch.randperm(len(edges), generator=self.dice, device="cpu")[:n]]
            drawn.view(-1)[chosen] = True
        return drawn


def _p_value(own: float, others: Sequence[float]) -> float:
    """The share of random circuits that are at least as good, the circuit itself among them."""
    return (1 + sum(other <= own for other in others)) / (1 + len(others))


def _sufficiency(lab: _Lab, own: Result) -> Check:
    kinds = {"edges": False, "edges of every layer": True}
    errors = {
        kind: [x.error for x in lab.measure([lab.random_mask(by_layer=by_layer) for _ in range(RANDOM // 2)])]
        for kind, by_layer in kinds.items()
    }
    p = {kind: _p_value(own.error, values) for kind, values in errors.items()}
    medians = {kind: float(torch.tensor(values).median()) for kind, values in errors.items()}
    best = min(min(values) for values in errors.values())
    about = (
        f"error {own.error:.3f} (faithfulness {own.faithfulness:.3f}); random circuits of the same size "
        f"{medians['edges']:.3f}, of the same layers {medians['edges of every layer']:.3f}, best {best:.3f}"
    )
    details = {"faithfulness": own.faithfulness, "p": p, "random_median": medians, "random_best": best}
    return Check(own.error, min(medians.values()), max(p.values()) <= LEVEL, about, details)


def sign_test(wins: int, losses: int) -> float:
    """The two-sided p value of as uneven a split of wins and losses, if both were as likely.

    >>> sign_test(0, 6), sign_test(3, 3)
    (0.03125, 1.0)
    """
    n, extreme = wins + losses, max(wins, losses)
    ways = sum(math.comb(n, k) for k in range(extreme, n + 1))
    return min(1.0, 2.0 * ways / 2.0**n)


def _equivalence(own: Result) -> Check:
    gap = (own.circuit_values - own.clean_values).double()
    unit = float((own.clean_values - own.corrupted_values).abs().double().mean())
    wins, losses = (int((sign * gap > 1e-5 * unit).sum()) for sign in (1, -1))
    p, (low, high) = sign_test(wins, losses), own.interval
    off, passed = own.faithfulness - 1, max(abs(low - 1), abs(high - 1)) <= MARGIN
    about = (
        f"off by {off:+.3f} of the behaviour [{low - 1:+.3f}, {high - 1:+.3f}], margin {MARGIN}; stronger than the "
        f"model on {wins}, weaker on {losses} of {len(gap)} examples (sign test p = {p:.3f})"
    )
    return Check(off, MARGIN, passed, about, {"interval": [low - 1, high - 1], "wins": wins, "losses": losses, "p": p})


def _necessity(lab: _Lab) -> Check:
    graph, own = lab.circuit.graph, lab.circuit.mask
    masks = [own, *(lab.random_mask(by_layer=False) for _ in range(RANDOM // 2))]
    kept = [x.faithfulness for x in lab.measure([graph.mask & ~mask for mask in masks])]
    chance = float(torch.tensor(kept[1:]).median())
    about = f"{kept[0]:.3f} of the behaviour is left without it; without as many random edges {chance:.3f}"
    details: dict[str, Any] = {"p": _p_value(kept[0], kept[1:])}
    passed = kept[0] < KEPT and kept[0] <= chance - APART
    if lab.circuit.provenance.ablation == CORRUPTED:
        # The same two prompts, exchanged.
        exchanged = replace(lab.task, clean=lab.task.corrupted, corrupted=lab.task.clean, spans=None)
        details["moved"] = lab.measure([own], exchanged)[0].faithfulness
        passed = passed and details["moved"] > 1 - KEPT
        about += f"; corrupted, it alone moves the metric by {details['moved']:.3f} of it"
    return Check(kept[0], chance, passed, about, details)


def sign_flip_p(losses: Float[Tensor, "example edge"], dice: torch.Generator) -> Float[Tensor, " edge"]:
    """For each edge how often the mean loss is as large when the signs of the examples are random."""
    signs = 2.0 * torch.randint(2, (FLIPS, len(losses)), generator=dice, device="cpu") - 1
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


def _minimality(lab: _Lab, own: Result) -> Check:
    circuit = lab.circuit
    weakest = circuit.scores.abs().sort(stable=True).indices[:WEAKEST].tolist()
    masks = []
    for i in weakest:
        mask = circuit.mask
        mask[tuple(circuit.index[i])] = False
        masks.append(mask)
    unit = float((own.clean_values - own.corrupted_values).abs().mean())
    distances = torch.stack([(x.circuit_values - x.clean_values).abs() for x in [own, *lab.measure(masks)]]) / unit
    loss = (distances[1:] - distances[0]).T  # (example, edge)
    loss = torch.where(loss.abs() < 1e-5, 0.0, loss)
    needed = holm(sign_flip_p(loss, lab.dice))
    idle = [circuit.edges[i] for i, matters in zip(weakest, needed.tolist(), strict=True) if not matters]
    share = float(needed.double().mean())
    about = f"{int(needed.sum())} of its {len(weakest)} weakest edges are needed"
    about += f"; not needed: {', '.join(idle[:3])}{' ...' if len(idle) > 3 else ''}" if idle else ""
    return Check(share, NEEDED, share >= NEEDED, about, {"tested": len(weakest), "not_needed": idle})


def _stability(lab: _Lab, found_on: Task | None, draws: Sequence[Task]) -> Check:
    circuit, made = lab.circuit, lab.circuit.provenance
    how = made.how.partition("=")[0].partition("+")[0]
    if made.method not in METHODS or how not in SELECTIONS or made.of_nodes:
        return Check(None, None, None, "the circuit does not say how it was found, so it cannot be found again")
    if found_on is None:
        return Check(None, None, None, "needs the examples that it was found with (found_on)")
    samples = [_resampled(found_on, lab.dice) for _ in range(SAMPLES)]
    again = [_found_again(lab, sample) for sample in samples]
    others = [_found_again(lab, sample) for sample in draws]
    bootstrap, nodes = _jaccard(circuit, again), _jaccard(circuit, again, nodes=True)
    n, total = len(circuit), circuit.graph.n_edges
    chance = n / (2 * total - n)
    about = (
        f"Jaccard {bootstrap:.2f} of edges, {nodes:.2f} of nodes over {SAMPLES} bootstrap samples; random {chance:.2f}"
    )
    details: dict[str, Any] = {"nodes": nodes}
    if others:
        details["draws"] = _jaccard(circuit, others)
        about += f"; {details['draws']:.2f} of edges over {len(others)} other draw{'s' * (len(others) > 1)}"
    return Check(bootstrap, chance, bootstrap >= max(SHARED, chance), about, details)


def _resampled(task: Task, dice: torch.Generator) -> Task:
    """As many examples, drawn with replacement."""
    rows = torch.randint(len(task), (len(task),), generator=dice, device="cpu").tolist()

    def some(values: Any) -> Any:
        return values[rows] if isinstance(values, Tensor) else [values[i] for i in rows]

    spans = None if task.spans is None else some(task.spans)
    return replace(task, clean=some(task.clean), corrupted=some(task.corrupted), labels=some(task.labels), spans=spans)


def _found_again(lab: _Lab, task: Task) -> Circuit:
    """The circuit that the same method and selection find on these examples."""
    about, made, limits = lab.circuit.about, lab.circuit.provenance, lab.limits
    budget: dict[str, Any] = {"batch_size": limits.batch_size, "memory": limits.memory}
    options = {**about.get("options", {})}
    steps = about.get("steps") if "steps" in METHODS[str(made.method)].defaults else None
    scores = attribute(lab.model, task, str(made.method), steps=steps, ablation=made.ablation, **budget, **options)
    n = lab.circuit.asked if find_selection(made.how)[0].sized else None
    return select(scores, n, how=made.how, model=lab.model, task=task, **budget)


def _jaccard(circuit: Circuit, others: Sequence[Circuit], *, nodes: bool = False) -> float:
    """The share of edges, or nodes, that the circuit has in common with another, its mean over others."""
    own, *sets = (set(x.nodes if nodes else x.edges) for x in (circuit, *others))
    return sum(len(own & other) / len(own | other) for other in sets) / len(sets)


def _transfer(lab: _Lab, own: Result, found_on: Task | None) -> Check:
    if found_on is None:
        return Check(None, None, None, "needs the examples that it was found with (found_on)")
    before = lab.measure([lab.circuit.mask], found_on)[0].faithfulness
    about = f"faithfulness {own.faithfulness:.3f} on other examples, {before:.3f} on those it was found with"
    return Check(own.faithfulness, before, own.faithfulness >= before - MARGIN, about)
