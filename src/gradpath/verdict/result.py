"""The outcome of the tests of a circuit: a line for each, and one for all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

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
    """One test: its number, what that would be by chance or at most, whether it is passed, and what it means.

    ``passed`` is None if the test could not be made; ``about`` then says why.
    """

    value: float | None
    null: float | None
    passed: bool | None
    about: str
    details: dict[str, Any] = field(default_factory=dict)


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
        return sentence(self.checks)

    def to_json(self) -> dict[str, Any]:
        """All numbers as plain values, as ``gradpath test --json`` prints them."""
        facts = {"model": self.model, "task": self.task, "examples": self.examples, "edges": self.edges}
        return {**facts, **{name: asdict(check) for name, check in self.checks.items()}, "verdict": self.verdict}

    def __repr__(self) -> str:
        head = f"<Verdict on {self.edges:,} edges, {self.examples} examples of {self.task} in {self.model}>"
        signs = {True: "pass", False: "FAIL", None: "   -"}
        lines = [f"  {signs[check.passed]}  {name:<12} {check.about}" for name, check in self.checks.items()]
        return "\n".join([head, *lines, f"  The circuit {self.verdict}."])
