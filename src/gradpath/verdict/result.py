"""The outcome of the tests of a circuit: a line for each, and one for all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

# What each test asks, in the order in which a verdict lists them.
QUESTIONS = {
    "sufficiency": "Better than random circuits?",
    "equivalence": "The behaviour of the model?",
    "necessity": "Does the model need it?",
    "minimality": "Does it need all its edges?",
    "stability": "Found again on other samples?",
    "transfer": "The same on other examples?",
}
NAMES = tuple(QUESTIONS)


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


@dataclass(frozen=True)
class Effects:
    """How exact the effects of the circuit's edges are, and what could have been missed: see ``verdict.effects``.

    All numbers are shares of the behaviour.

    Args:
        edges: A sample of the circuit's edges, the strongest first.
        measured: What the circuit loses without each of them.
        estimated: The same to first order, by gradients in the circuit; None if the metric has no gradient.
        bound: By how much an edge outside changes the circuit at most, with 95% confidence; None if there is none.
        bound_edge: The edge that this bound is of.
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


def sentence(checks: Mapping[str, Check]) -> str:
    """Which of these tests are passed, of those that could be made."""
    made = {name: check for name, check in checks.items() if check.passed is not None}
    failed = [name for name, check in made.items() if not check.passed]
    if not made:
        return "no test could be made"
    if not failed:
        return f"passes all {len(made)} tests" if len(made) > 1 else f"passes the test of {next(iter(made))}"
    *some, last = failed
    names = f"{', '.join(some)} and {last}" if some else last
    return f"fails {names}; passes {len(made) - len(failed)} of {len(made)} tests"


@dataclass(frozen=True, repr=False)
class Verdict:
    """The six tests of a circuit on a task, and the effects of its edges.

    Args:
        sufficiency: Is the circuit better than random circuits?
        equivalence: Does it behave like the model?
        necessity: Does the model need it?
        minimality: Does it need all its edges?
        stability: Is it found again on other samples?
        transfer: Does it do the same on other examples?
        effects: The effects of a sample of edges, measured and estimated, and a bound for all other edges.
        model: The name of the model.
        task: The name of the task.
        examples: The number of examples.
        edges: The number of edges of the circuit.
    """

    sufficiency: Check
    equivalence: Check
    necessity: Check
    minimality: Check
    stability: Check
    transfer: Check
    effects: Effects
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
        """Whether every test that could be run is passed."""
        return all(check.passed is not False for check in self.checks.values())

    @property
    def verdict(self) -> str:
        """Which tests are passed, in one line."""
        return sentence(self.checks)

    def to_json(self) -> dict[str, Any]:
        """All numbers as a dictionary, as ``gradpath test --json`` prints them."""
        facts = {"model": self.model, "task": self.task, "examples": self.examples, "edges": self.edges}
        checks = {name: asdict(check) for name, check in self.checks.items()}
        return {**facts, **checks, "effects": self.effects.to_json(), "verdict": self.verdict}

    def __repr__(self) -> str:
        head = f"<Verdict on {self.edges:,} edges, {self.examples} examples of {self.task} in {self.model}>"
        signs = {True: "pass", False: "FAIL", None: "   -"}
        lines = [f"  {signs[check.passed]}  {name:<12} {check.about}" for name, check in self.checks.items()]
        lines.append(f"        {'effects':<12} {self.effects.about}")
        return "\n".join([head, *lines, f"  The circuit {self.verdict}."])
