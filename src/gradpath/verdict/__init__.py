r"""``test``: should a circuit be believed? Six tests, each a number, what it would be by chance, and what it means.

A high faithfulness says little by itself: a circuit can be too large, fit its examples, leave out a part that backs it
up, or be one of many. With H the circuit, M the model, m_i the metric of example i, and the behaviour the mean
difference between clean and corrupted prompts:

``sufficiency``  The error of H against that of random circuits: with as many edges, with as many into every layer,
                 and of random paths from ``input`` to ``logits``. Passed if at most 5% of each kind are as good (Shi et
                 al. 2024, arXiv 2410.13032).
``equivalence``  How far H's mean metric is from M's, in shares of the behaviour. Passed if the 95% interval over
                 examples is within a margin of 0.1. And how often H beats M, with the p value of a sign test (Shi et
                 al.).
``necessity``    Both directions of patching. The share of the behaviour that is left when H's edges are corrupted and
                 all others run; passed if it is below 0.2, and as many random edges leave at least 0.5 more. And how
                 far the metric moves when H alone runs on the corrupted prompts and all others are clean: below 0.8,
                 something outside of H backs it up (OR).
``minimality``   The share of H's weakest edges that it needs: without such an edge, the examples are further from M (a
                 sign-flip test over examples, Holm's correction for as many edges). Passed from 0.9 on. An edge that
                 another one backs up inside of H is not needed by this definition, and with few examples a small need
                 is not clear.
``stability``    The Jaccard index of the edges of circuits that are found again, in the same way, on bootstrap samples
                 of the examples and on other draws (arXiv 2510.00845). Passed from 0.5 on.
``transfer``     The faithfulness on other words, on other words in other templates, and on the examples that the
                 circuit was found with. Passed if none of the first two is lower by more than the margin.

Next to them are the effects of a sample of H's edges, estimated by gradients and measured, and a bound on what an edge
outside of H could add: see ``verdict.effects``.

What faithfulness means depends on the ablation and on what is ablated (Miller et al. 2024, arXiv 2407.08734); all tests
use the circuit's own ablation. A test that cannot be made says why, and does not count.

Cost: three times ``RANDOM`` circuits, ``RANDOM`` complements, at most ``WEAKEST`` and ``SAMPLE`` circuits, ``SUBSETS``
large ones on a few examples, and ``SAMPLES`` attributions and selections.
"""

# ruff: noqa: PT028  (it is called test because that is what users type)
from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from gradpath.circuit import Circuit
from gradpath.errors import InputError
from gradpath.evaluation.plan import check_same_graph
from gradpath.limits import Limits
from gradpath.model.transformer import Transformer
from gradpath.tasks.task import Task
from gradpath.verdict import tests
from gradpath.verdict.effects import measure_effects
from gradpath.verdict.result import Check as Check
from gradpath.verdict.result import Verdict as Verdict
from gradpath.verdict.tests import FEWEST
from gradpath.verdict.tests import quick_checks as quick_checks


def test(
    model: Transformer,
    circuit: Circuit,
    task: Task,
    *,
    found_on: Task | None = None,
    draws: Sequence[Task] = (),
    reworded: Task | None = None,
    seed: int = 0,
    batch_size: int | None = None,
    memory: int | None = None,
    watch: Callable[[str], None] = lambda name: None,
) -> Verdict:
    """Test whether a circuit should be believed.

    Args:
        model: The model that the circuit is of.
        circuit: The circuit.
        task: The examples to test on, at least 10. Use other examples than those that the circuit was found on.
        found_on: The examples that the circuit was found on, for the tests of stability and transfer.
        draws: Other draws of those examples, for the test of stability.
        reworded: Examples in other templates, for the test of transfer: ``load_task(..., split="reworded")``.
        seed: The seed for random circuits and samples.
        batch_size: The largest number of examples in a batch; by default it depends on prompt length and free memory.
        memory: A budget in bytes, weights included; by default the weights and half of the free memory.
        watch: A function that is called with the name of each test before it is run.

    Returns:
        The verdict. Print it, or use ``.passed``, ``.necessity.value`` and ``.to_json()``.
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
    lab = tests.Lab(model, circuit, task, torch.Generator(device="cpu").manual_seed(seed), Limits(batch_size, memory))
    own = lab.measure([circuit.mask])[0]
    makers: dict[str, Callable[[], Check]] = {
        "sufficiency": lambda: tests.sufficiency(lab, own),
        "equivalence": lambda: tests.equivalence(own),
        "necessity": lambda: tests.necessity(lab),
        "minimality": lambda: tests.minimality(lab, own),
        "stability": lambda: tests.stability(lab, found_on, draws),
        "transfer": lambda: tests.transfer(lab, own, found_on, reworded),
    }
    checks = dict[str, Check]()
    for name, make in makers.items():
        watch(name)
        checks[name] = make()
    watch("effects")
    return Verdict(
        **checks,
        effects=measure_effects(lab, own),
        model=model.name,
        task=task.name,
        examples=len(task),
        edges=len(circuit),
    )
