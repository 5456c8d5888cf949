r"""``test``: should a circuit be believed? Six tests, each a number, what it would be by chance, and what it means.

A high faithfulness says little by itself: a circuit can be too large, fit its examples, leave out a part that backs it
up, or be one of many. With H the circuit, M the model, m_i the metric of example i, and the behaviour the mean
difference between clean and corrupted prompts:

``sufficiency``  H is better than random circuits and keeps at least half of the behaviour. The error of H against that
                 of 19 random circuits, connected and of the same size and shape (a rank test), and a lower bound of
                 the faithfulness (Shi et al. 2024, arXiv 2410.13032).
``equivalence``  H's mean metric is within a margin of 0.2 of the behaviour from M's: both bounds of the faithfulness
                 are.
``necessity``    M needs H. Without H's edges at most 0.2 of the behaviour is left, and less than without a random
                 circuit (a rank test). And when H alone runs on the corrupted prompts and all else is clean, the metric
                 moves by at least 0.8: if not, something outside of H backs it up (OR).
``minimality``   H needs at least 90% of its weakest edges: without such an edge, more examples are further from M than
                 closer to it (sign tests). An edge that another edge of H backs up is not needed by this definition.
``stability``    Circuits that are found in the same way on bootstrap samples of the examples share half of their edges,
                 by the mean pairwise Jaccard index (arXiv 2510.00845 asks for 0.8 over 100 samples).
``transfer``     The faithfulness on other words, and on other words in other templates, is within 0.2 of that on the
                 examples that H was found with: both bounds of the difference are.

Each is decided with "yes", "no" or "undecided", at a level of 5% both ways (``verdict.statistics``). An undecided test
says how many examples would be enough. If the model does not do the task, nothing is tested.

A verdict also has the effects of a sample of H's edges, estimated by gradients and measured, and a bound on what an
edge outside of H could add: see ``verdict.effects``.

What faithfulness means depends on the ablation and on what is ablated (Miller et al. 2024, arXiv 2407.08734). All tests
use the ablation that the circuit was found with. A test that cannot be run says why, and does not count.

Cost: ``RANDOM`` circuits and as many complements on a few examples, at most ``WEAKEST`` and ``SAMPLE`` circuits on all,
``SUBSETS`` large ones on a few, one attribution, and ``AGAIN`` attributions and selections if the selection measures.
"""

# ruff: noqa: PT028  (it is called test because that is what users type)
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gradpath.circuit import Circuit
from gradpath.errors import InputError, warn
from gradpath.evaluation.patched_run import check_same_graph
from gradpath.evaluation.result import NOT_DONE, Result
from gradpath.model.transformer import Transformer
from gradpath.runtime.progress import bars, describe, progress_bar
from gradpath.sweep import Limits
from gradpath.tasks.task import Task
from gradpath.verdict import checks, optional
from gradpath.verdict.checks import Check, CircuitUnderTest, limit_of
from gradpath.verdict.effects import Effects, measure_effects

# The question of each test, in the order in which a verdict lists them.
QUESTIONS = {
    "sufficiency": "Better than random circuits?",
    "equivalence": "The behaviour of the model?",
    "necessity": "Does the model need it?",
    "minimality": "Does it need all its edges?",
    "stability": "Found again on other samples?",
    "transfer": "The same on other examples?",
}
NAMES = tuple(QUESTIONS)
QUESTIONS |= {"specificity": "Of this task alone?", "rivals": "How much must another one share?"}  # optional


def sentence(checks: Mapping[str, Check]) -> str:
    """Which tests the circuit passes and fails and which are undecided, of those that could be run."""
    run = {name: check for name, check in checks.items() if limit_of(name, check)}
    if not run:
        reasons = {check.about for check in checks.values()}
        return reasons.pop() if len(reasons) == 1 else "no test could be run"
    by_decision = {kind: [name for name, x in run.items() if x.decision == kind] for kind in ("no", "yes", "undecided")}
    failed, passed, undecided = (_listed(names) for names in by_decision.values())
    if not failed and not undecided:
        return f"passes all {len(run)} tests" if len(run) > 1 else f"passes the test of {passed}"
    parts = [("fails", failed), ("passes", passed), ("undecided:", undecided)]
    return "; ".join(f"{word} {names}" for word, names in parts if names)


def _listed(names: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    *others, last = names or [""]
    return f"{', '.join(others)} and {last}" if others else last


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
        effects: The effects of a sample of edges, measured and estimated, and a bound for all other edges; None if the
            model does not do the task.
        result: The result of the circuit on the examples.
        model: The name of the model.
        task: The name of the task.
        examples: The number of examples.
        edges: The number of edges of the circuit.
        specificity: Is it of this task alone? None unless all tests were requested.
        rivals: How much does another circuit, as faithful, have to share with it? None unless all were requested.
    """

    sufficiency: Check
    equivalence: Check
    necessity: Check
    minimality: Check
    stability: Check
    transfer: Check
    effects: Effects | None
    result: Result
    model: str
    task: str
    examples: int
    edges: int
    specificity: Check | None = None
    rivals: Check | None = None

    @property
    def checks(self) -> dict[str, Check]:
        """The tests by name."""
        return {name: check for name in QUESTIONS if (check := getattr(self, name)) is not None}

    @property
    def passed(self) -> bool | None:
        """Whether every test that could be run is passed; None if none failed, but some are undecided."""
        outcomes = [check.passed for name, check in self.checks.items() if limit_of(name, check)]
        return False if False in outcomes else None if None in outcomes or not outcomes else True

    @property
    def verdict(self) -> str:
        """Which tests are passed, in one line."""
        return sentence(self.checks)

    def to_json(self) -> dict[str, Any]:
        """All numbers as a dictionary, as ``gradpath test --json`` prints them."""
        facts = {"model": self.model, "task": self.task, "examples": self.examples, "edges": self.edges}
        done = {"accuracy": self.result.accuracy, "does_task": self.result.does_task}
        done |= {"faithfulness": self.result.faithfulness, "error": self.result.error}
        checks = {name: check.to_json() for name, check in self.checks.items()}
        effects = None if self.effects is None else self.effects.to_json()
        return {**facts, **done, **checks, "effects": effects, "verdict": self.verdict}

    def __repr__(self) -> str:
        head = f"<Verdict on {self.edges:,} edges, {self.examples} examples of {self.task} in {self.model}>"
        if self.effects is None:
            return f"{head}\n  {self.result.behaviour}"
        signs = {"yes": "pass", "no": "FAIL", "undecided": "   ?"}
        lines = [
            f"  {signs[check.decision] if limit_of(name, check) else '   -'}  {name:<12} {check.about}"
            for name, check in self.checks.items()
        ]
        lines.append(f"        {'effects':<12} {self.effects.about}")
        lines.append(f"        {'model':<12} {self.result.behaviour}")
        return "\n".join([head, *lines, f"  The circuit {self.verdict}."])


def test(
    model: Transformer,
    circuit: Circuit,
    task: Task,
    *,
    found_on: Task | None = None,
    attributed: Task | None = None,
    draw: Task | None = None,
    reworded: Task | None = None,
    mean_over: Task | None = None,
    all: bool = False,  # noqa: A002
    seed: int = 0,
    batch_size: int | None = None,
    memory: int | None = None,
    progress: bool = False,
) -> Verdict:
    """Stress-test a circuit.

    Args:
        model: The model that the circuit is of.
        circuit: The circuit.
        task: The examples to test on, at least 10. Use other examples than those that the circuit was found on.
        found_on: The examples that the circuit was found on, for the tests of stability and transfer.
        attributed: The examples that were attributed, if they are not exactly ``found_on``. Examples of ``task`` that
            are among them are counted, with a warning.
        draw: Another draw of those examples, for the test of stability of a selection that runs circuits.
        reworded: Examples in other templates, for the test of transfer: ``load_task(..., split="reworded")``.
        mean_over: The task whose clean prompts the means of an ablation are taken over; by default those that were
            attributed, as in ``find``, or else ``task``.
        all: Whether to run the two optional tests, too: specificity and rivals, which takes several selections.
        seed: The seed for random circuits and samples.
        batch_size: The largest number of examples in a batch; by default it depends on prompt length and free memory.
        memory: A budget in bytes, weights included; by default the weights and half of the free memory.
        progress: Whether to show progress bars.

    Returns:
        The verdict. Print it, or use ``.passed``, ``.necessity.value`` and ``.to_json()``.
    """
    check_same_graph(model, circuit)
    if len(task) < checks.FEWEST:
        raise InputError(
            f"a test of a circuit needs at least {checks.FEWEST} examples: {task.name!r} has {len(task)}. "
            "With fewer, chance could explain any result. Give more."
        )
    if not len(circuit):
        raise InputError("this circuit cannot be tested: it has no edges.")
    attributed = found_on if attributed is None else attributed
    tested = CircuitUnderTest(
        model,
        circuit,
        task,
        torch.Generator(device="cpu").manual_seed(seed),
        Limits(batch_size, memory),
        mean_over=mean_over or attributed or task,
        found_on=found_on,
    )
    shared = checks.shared_pairs(task, attributed)
    if shared:
        warn(
            f"{shared} of the {len(task)} examples to test on were attributed to find the circuit: it may do worse on "
            "examples that were not."
        )
    with bars(progress), progress_bar("testing", 1 + len(QUESTIONS if all else NAMES), unit="test") as bar:
        return _verdict(tested, draw, reworded, shared, all, bar)


def _verdict(
    tested: CircuitUnderTest, draw: Task | None, reworded: Task | None, shared: int, every: bool, bar: Any
) -> Verdict:
    """Run the tests, as ``test`` documents them."""
    result = tested.measure([tested.circuit.mask])[0]
    runs: dict[str, Callable[[], Check]] = {
        "sufficiency": lambda: checks.sufficiency(tested, result),
        "equivalence": lambda: checks.equivalence(result),
        "necessity": lambda: checks.necessity(tested, result),
        "minimality": lambda: checks.minimality(tested, result),
        "stability": lambda: checks.stability(tested, draw),
        "transfer": lambda: checks.transfer(tested, result, reworded, shared),
    }
    if every:
        runs["specificity"] = lambda: optional.specificity(tested, optional.other_tasks(tested))
        runs["rivals"] = lambda: optional.rivals(tested, result)
    outcomes, effects = dict.fromkeys(runs, checks.not_run(NOT_DONE)), None
    if result.does_task != "no":
        for name, run in runs.items():
            describe(bar, f"testing {name}")
            outcomes[name] = run()
            bar.update()
        describe(bar, "testing effects of edges")
        effects = measure_effects(tested, result)
        bar.update()
    return Verdict(
        **outcomes,
        effects=effects,
        result=result,
        model=tested.model.name,
        task=tested.task.name,
        examples=len(tested.task),
        edges=len(tested.circuit),
    )
